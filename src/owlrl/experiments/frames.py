"""An episode that was acted without knowing the task, as pictures: a strip of frames, or a GIF."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from minigrid.minigrid_env import MiniGridEnv

from owlrl._arguments import Arguments
from owlrl.checkpoint import write_atomically
from owlrl.envs import ScaleGoalReward
from owlrl.errors import OwlValueError
from owlrl.experiments._optional import optional
from owlrl.experiments.keeping import repeatable
from owlrl.experiments.plots import (
    INK,
    QUIET,
    colour,
    dashes,
    draw_acting,
    label,
    new_figure,
    outcome,
    short,
    whole_steps,
)
from owlrl.experiments.session import Session

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Recording", "frame_strip", "record_episode", "write_gif"]

IntArray = npt.NDArray[np.int64]
SHORTEST, LONGEST, WHOLE = 60, 250, 20_000  # milliseconds of a GIF's frame, and of a GIF that is long
PAUSE = 2_000  # on the last frame
LARGEST = 400  # pixels


@dataclass(frozen=True, eq=False)
class Recording:
    """One episode and its pictures.

    Attributes:
        trace: a row of kind "trace", as an evaluation gives it; `head_probabilities` draws it.
        actions: (T, ...) the actions.
        frames: (T + 1, height, width, 3) uint8, the drawing before each step and after the last.

    >>> import numpy as np
    >>> from owlrl.experiments import Recording
    >>> trace = {"task": "a", "mode": "oracle", "heads": ["a"], "success": False, "arms": [0]}
    >>> Recording(trace, np.zeros(1, int), np.zeros((2, 4, 4, 3), np.uint8)).end
    'end: not solved'
    """

    trace: dict[str, Any]
    actions: npt.NDArray[Any]
    frames: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        steps, frames = len(self.trace["arms"]), self.frames.shape
        if steps < 1 or len(self.actions) != steps or len(frames) != 4 or frames[0] != steps + 1:
            raise OwlValueError(
                f"Recording: got {steps} arms, {len(self.actions)} actions and frames of shape {frames}; "
                "expected T arms and actions with T >= 1, and frames (T + 1, height, width, 3)"
            )

    @property
    def end(self) -> str:
        """How it ended, in words."""
        success = self.trace.get("success")
        return "end" if success is None else f"end: {'solved' if success else 'not solved'}"


def record_episode(
    session: Session, task: str, *, policy: str, tile_size: int = 24, max_steps: int = 1_000
) -> Recording:
    """Act one episode of a task in its real environment, and keep its pictures.

    Args:
        session: what was trained.
        task: one of its tasks.
        policy: the policy, e.g. ``"hedge+td"``.
        tile_size: pixels of a cell's side.
        max_steps: stop there if the episode has not ended.

    >>> from owlrl.experiments import Run, Session, record_episode
    >>> session = Session(Run("Crossroads-2", method="experience-replay", arguments={"max_steps": 5}))
    >>> recording = record_episode(session, "crossroads-0", policy="oracle", tile_size=8)
    >>> recording.frames.shape, recording.end
    ((6, 24, 88, 3), 'end: not solved')
    """
    specs = session.run.specs
    arguments = Arguments("record_episode")
    tile_size, max_steps = (
        arguments.integer("tile_size", tile_size),
        arguments.integer("max_steps", max_steps),
    )
    if task not in specs:
        arguments.problem(f"task is {task!r}; expected one of {', '.join(specs)}")
    arguments.check()
    acting = session.policy_of(policy, [task])
    env = specs[task](render_mode="rgb_array", disable_env_checker=True)
    grid = isinstance(base := env.unwrapped, MiniGridEnv)
    if isinstance(base, MiniGridEnv):
        base.tile_size = tile_size
        env = ScaleGoalReward(env, session.run.preset.goal_scale)
    actions: list[Any] = []
    over, info = False, dict[str, Any]()
    with repeatable(session.run.seed):
        acting.reset(num_envs=1)
        observation, _ = env.reset(seed=0)
        frames = [_picture(env)]
        while not over and len(actions) < max_steps:
            action = acting.act(observation[None])
            following, reward, terminated, truncated, info = env.step(action[0])
            acting.observe(observation[None], action, [reward], following[None], [terminated])
            over, observation = bool(terminated or truncated), following
            actions.append(action[0])
            frames.append(_picture(env))
    success = bool(info.get("is_success", terminated and float(reward) > 0)) if grid else None
    trace = _trace(acting, task=task, mode=policy, success=success)
    if not session.run.recipe.heads:
        trace["heads"] = ["one head"]
    return Recording(trace, np.array(actions), np.stack(frames))


def _picture(env: gymnasium.Env[Any, Any]) -> npt.NDArray[np.uint8]:
    """What is to be seen now; a large drawing made small by leaving out pixels."""
    drawn = np.asarray(env.render(), dtype=np.uint8)
    step = -(-max(drawn.shape[:2]) // LARGEST)
    return drawn[::step, ::step]


def _trace(acting: Any, **more: Any) -> dict[str, Any]:
    return {
        "kind": "trace",
        **more,
        "heads": acting.tasks,
        "arms": [int(step.arm[0]) for step in acting.trace],
        "probabilities": [step.probabilities[0].tolist() for step in acting.trace],
        "losses": [step.losses[0].tolist() for step in acting.trace],
    }


def frame_strip(recording: Recording, *, most: int = 12) -> Figure:
    """Frames of an episode, each with a border in the colour of the head that acts in it.

    Shown are the first and the last frame and those where another head takes over, as far as there is
    room, and frames in between at equal distances. The bar below has the whole episode.

    Args:
        recording: from `record_episode`.
        most: how many frames at most, at least 2.

    >>> import numpy as np
    >>> from owlrl.experiments import Recording, frame_strip
    >>> trace = {"task": "b", "mode": "hedge+td", "heads": ["a", "b"], "success": True, "arms": [0, 1, 1]}
    >>> recording = Recording(trace, np.zeros(3, int), np.zeros((4, 8, 8, 3), np.uint8))
    >>> len(frame_strip(recording).axes)  # four frames and the bar
    5
    """
    arguments = Arguments("frame_strip")
    most = arguments.integer("most", most, least=2)
    arguments.check()
    arms, heads = np.asarray(recording.trace["arms"], dtype=np.int64), recording.trace["heads"]
    chosen = _chosen(arms, most)
    rows = -(-len(chosen) // 6)
    columns = -(-len(chosen) // rows)
    tall = recording.frames.shape[1] / recording.frames.shape[2]
    size = 1.55
    figure = new_figure(max(columns * size, 5.0), rows * (size * tall + 0.28) + 0.95, what="frame_strip")
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[*[size * tall] * rows, 0.16])
    for place, step in enumerate(chosen.tolist()):
        axes = figure.add_subplot(grid[place // columns, place % columns])
        axes.imshow(recording.frames[step])
        axes.set(xticks=[], yticks=[])
        last = step == len(arms)
        head = None if last else int(arms[step])
        text = recording.end if head is None else f"{step}: {label(heads[head], most=18)}"
        ink = QUIET if head is None else colour(head)
        axes.set_title(text, fontsize=8, color=INK if head is None else ink, fontweight="bold", pad=4)
        axes.spines[:].set(color=ink, lw=4, ls="solid" if head is None else dashes(head))
    bar = figure.add_subplot(grid[rows, :])
    draw_acting(bar, arms)
    bar.plot(chosen, np.full(len(chosen), 0.85), ls="none", marker="v", color=INK, ms=4, clip_on=False)
    bar.set_xlabel("step, and colour of the head that acts; the frames above are marked", fontsize=8)
    bar.tick_params(labelsize=8)
    whole_steps(bar)
    about = f"{label(recording.trace['mode'])} in {label(recording.trace['task'])}"
    figure.suptitle(f"{about}: {outcome(recording.trace)}", fontsize=10)
    return figure


def _chosen(arms: IntArray, most: int) -> IntArray:
    """Which of the T + 1 frames to show: first and last, where the head changes, then what fills gaps."""
    ends = {0, len(arms)}
    changes = (np.flatnonzero(np.diff(arms)) + 1).tolist()
    if len(changes) > most - 2:
        places = np.linspace(0, len(changes) - 1, most - 2).round().astype(int)
        changes = [changes[place] for place in places]
    found = sorted(ends | set(changes))
    while len(found) < min(most, len(arms) + 1):
        gaps = np.diff(found)
        widest = int(gaps.argmax())
        found.insert(widest + 1, found[widest] + int(gaps[widest]) // 2)
    return np.array(found, dtype=np.int64)


def write_gif(recording: Recording, output: str | os.PathLike[str] | io.BufferedIOBase) -> None:
    """Write an episode as a GIF: name and colour of the head that acts, and how likely each one is.

    Args:
        recording: from `record_episode`.
        output: a path, written atomically, or a binary file.

    >>> import io, numpy as np
    >>> from owlrl.experiments import Recording, write_gif
    >>> trace = {"task": "b", "mode": "hedge+td", "heads": ["a", "b"], "success": True,
    ...          "arms": [0, 1], "probabilities": [[0.5, 0.5], [0.1, 0.9]]}
    >>> file = io.BytesIO()
    >>> write_gif(Recording(trace, np.zeros(2, int), np.zeros((3, 64, 64, 3), np.uint8)), file)
    >>> file.getvalue()[:6]
    b'GIF89a'
    """
    images = [_gif_frame(recording, step) for step in range(len(recording.frames))]
    each = int(np.clip(WHOLE / len(images), SHORTEST, LONGEST))
    file = io.BytesIO()
    images[0].save(
        file,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=[each] * (len(images) - 1) + [PAUSE],
        loop=0,
        disposal=1,
    )
    if isinstance(output, io.IOBase):
        output.write(file.getvalue())
    else:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, file.getvalue())


def _gif_frame(recording: Recording, step: int) -> Any:
    """One picture: a line of text, the frame in its border, and a bar of the heads' probabilities."""
    pictures, drawing = (_pillow(name) for name in ("Image", "ImageDraw"))
    trace, frame = recording.trace, recording.frames[step]
    arms, names = trace["arms"], trace["heads"]
    ended = step == len(arms)
    last = min(step, len(arms) - 1)
    ink = QUIET if ended else colour(arms[step])
    text = recording.end if ended else f"step {step}: {names[arms[step]]}"
    edge, top, bottom = 8, 26, 16
    height, width = frame.shape[0] + top + edge + bottom, max(frame.shape[1] + 2 * edge, 150)
    image = pictures.new("RGB", (width, height), "white")
    draw = drawing.Draw(image)
    draw.rectangle((0, 0, width, top + frame.shape[0] + edge - 1), fill=ink)
    size, most = 14, len(text)  # letters get smaller, then fewer, until they fit
    while draw.textlength(short(text, most=most), font=_font(size)) > width - 2 * edge and most > 4:
        size, most = max(size - 1, 11), most - (size == 11)
    draw.text((edge, top // 2), short(text, most=most), font=_font(size), fill="white", anchor="lm")
    image.paste(pictures.fromarray(frame), ((width - frame.shape[1]) // 2, top))
    left, right = 0.0, 0.0
    for head, share in enumerate(trace["probabilities"][last]):
        left, right = right, right + share * width
        draw.rectangle((round(left), height - bottom + 4, round(right), height), fill=colour(head))
    return image.quantize(128)


@lru_cache(maxsize=8)
def _font(size: int) -> Any:
    """The font of the other pictures, which has letters of many scripts."""
    matplotlib = optional("matplotlib", extra="plots", what="write_gif")
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans-Bold.ttf"
    return _pillow("ImageFont").truetype(str(path), size)


def _pillow(name: str) -> Any:
    return optional(f"PIL.{name}", extra="plots", what="write_gif")

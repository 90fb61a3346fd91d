"""HalfCheetah whose paid direction flips in mid-episode: how soon the right head acts, and a film of it.

    python benchmarks/cheetah_flip.py --seeds 0 --output runs/flip

trains a wrapper as the study ``cheetah`` does (about six minutes a seed), or reads ``owl-SEED.safetensors``
from the output directory, runs episodes that flip after half of their steps, and writes flip.json; with
``--film FILE`` a GIF of the first episode: MuJoCo needs a way to draw (``MUJOCO_GL=egl`` or ``osmesa``).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from owlrl import OwlWrapper
from owlrl.experiments import cheetah

FLIP, STEPS = 500, 1000


def trained(seed: int, directory: Path) -> OwlWrapper:
    """The wrapper of the study's method "owl"; kept in the directory."""
    path = directory / f"owl-{seed}.safetensors"
    env = next(iter(cheetah.tasks.values()))()
    if path.exists():
        return OwlWrapper.load(path, cheetah.make_model(env, seed), seed=seed)
    model = cheetah.make_model(env, seed)
    owl = OwlWrapper(model, seed=seed)
    for name, make in cheetah.tasks.items():
        with owl.task(name, env=make()):
            model.learn(cheetah.steps)
    owl.save(path)
    return owl


def episode(owl: OwlWrapper, first: str, seed: int, frames: list[Any] | None = None) -> dict[str, Any]:
    """One episode that begins in a direction and flips; which task's head acted, and what was paid."""
    names = list(cheetah.tasks)
    film: dict[str, Any] = {"render_mode": "rgb_array", "camera_name": "track", "width": 320, "height": 160}
    drawn = {} if frames is None else film
    env = cheetah.tasks[first](**drawn)
    policy, right = owl.policy(), first
    observation, _ = env.reset(seed=seed)
    policy.reset()
    wrong, paid = [], []
    for step in range(STEPS):
        if step == FLIP:
            env.unwrapped._forward_reward_weight *= -1.0
            right = next(name for name in names if name != first)
        action = policy.act(observation)
        acting = policy.tasks[int(policy.arm)]
        after, reward, terminated, _, _ = env.step(action)
        policy.observe(observation, action, reward, after, terminated)
        observation = after
        wrong.append(acting != right)
        paid.append(float(reward))
        if frames is not None and step % 4 == 0 and FLIP - 120 <= step < FLIP + 200:
            place = float(env.unwrapped.data.qpos[0])
            frames.append(labelled(env.render(), f"paid: {right}     head: {acting}", place))
    env.close()
    late = np.flatnonzero(wrong[FLIP:])
    return {
        "first": first,
        "seed": seed,
        "until right": int(np.argmin(wrong[FLIP:])) if not all(wrong[FLIP:]) else None,
        "last wrong": int(late[-1]) + 1 if len(late) else 0,
        "before": round(sum(paid[:FLIP]), 1),
        "after": round(sum(paid[FLIP:]), 1),
    }


def labelled(frame: np.ndarray, text: str, place: float) -> Any:
    """The picture with words on top and a mark for every metre below: the floor ends at 40 m."""
    from PIL import Image, ImageDraw

    image = Image.fromarray(frame)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, 320, 20), fill=(0, 0, 0))
    draw.rectangle((0, 140, 320, 160), fill=(0, 0, 0))
    draw.text((8, 4), text, fill=(255, 255, 255))
    for metre in range(int(place) - 4, int(place) + 5):
        x = 160 + 64 * (metre - place)  # 64 pixels a metre at the distance of the body
        draw.line((x, 140, x, 145), fill=(255, 255, 255))
        draw.text((x, 147), f"{metre} m", fill=(255, 255, 255), anchor="ma")
    return image.quantize(32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--episodes", type=int, default=5, help="for each direction to begin with")
    parser.add_argument("--output", type=Path, default=Path("runs/flip"))
    parser.add_argument("--film", type=Path, help="a GIF of the first episode")
    told = parser.parse_args()
    told.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in told.seeds:
        owl = trained(seed, told.output)
        for first in cheetah.tasks:
            for number in range(told.episodes):
                frames: list[Any] | None = [] if told.film and not rows else None
                rows.append({"owl": seed, **episode(owl, first, 1_000 + number, frames)})
                print(rows[-1], flush=True)
                if frames:
                    more = {"save_all": True, "append_images": frames[1:], "duration": 80, "loop": 0}
                    frames[0].save(told.film, optimize=True, **more)
    text = json.dumps(rows, indent=1) + "\n"
    (told.output / "flip.json").write_text(text, encoding="utf-8")
    waits = [STEPS if row["until right"] is None else row["until right"] for row in rows]
    soon = sum(wait <= 20 for wait in waits)
    about = f"median {np.median(waits):g}, most {max(waits)}"
    print(f"{len(rows)} flips; the right head acts within 20 steps in {soon}; {about}")


if __name__ == "__main__":
    main()

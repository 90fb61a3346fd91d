"""Public names and signatures are those of tests/public_api.txt: a change of them is meant."""

from __future__ import annotations

import difflib

from scripts.public_api import SNAPSHOT, snapshot


def test_public_names_and_signatures_are_as_written_down():
    kept, now = SNAPSHOT.read_text(encoding="utf-8").splitlines(), snapshot().splitlines()
    changed = [line for line in difflib.unified_diff(kept, now, lineterm="", n=0) if line[0] in "+-"]
    assert not changed, "python scripts/public_api.py --write, if this is meant:\n" + "\n".join(changed[2:])


def test_the_snapshot_has_what_users_call():
    text = SNAPSHOT.read_text(encoding="utf-8")
    for name in ("owlrl.OwlWrapper(learner: 'Any'", "owlrl.wrapper.OwlWrapper.task(self, name: 'str'"):
        assert name in text

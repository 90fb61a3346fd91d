from __future__ import annotations

import pytest
import torch

from owlrl.experiments.repeatable import repeatable


def test_a_run_leaves_the_process_as_it_was():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError), repeatable(0):
            assert torch.get_num_threads() == 1
            torch.rand(1)
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_num_threads(threads)

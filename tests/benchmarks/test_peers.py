"""The table of other runtimes: what is reported, without models and without the clock."""

from __future__ import annotations

import argparse

import pytest
from benchmarks import cli, peers, results
from benchmarks.runtimes import names
from benchmarks.runtimes.__main__ import measure as measure_in_process
from benchmarks.runtimes.request import Answer, Request, Times
from benchmarks.tables import line
from fusewheel._core.process import ChildError

MINE, RIVAL = "ours-int4-int8", names.ORT_INT4


def request(**changes):
    prompts = [[1, 2], [2, 3]]
    settings = {"runtime": "", "folder": "", "prompts": prompts, "tokens": 4, "first": 5}
    settings |= {"repeats": 3, "seconds": 9.0, "threads": 2, "started": 0.0}
    return Request(**(settings | changes))


def options(**changes):
    return argparse.Namespace(**({"rounds": 2, "limit": 5.0} | changes))


def answer(decode, tokens=(7, 8, 9), first=2.0, prefill=0.25):
    return Answer(first, [prefill], [decode], 3 * 2**20, list(tokens))


def cells_of(answers, notes=None):
    """The cells of runtimes that answer this."""

    def start(asked, limit, caches):
        found = answers[asked.runtime]
        if isinstance(found, ChildError):
            raise found
        return found

    reasons = dict.fromkeys(answers, "") | (notes or {})
    found = peers.measure(request(), reasons, options(), start)
    return {cell.name: cell for cell in peers.table_cells("m", request(), found)}


def test_a_cell_has_all_figures_of_a_runtime():
    answers = {names.EAGER: answer(8.0), MINE: answer(1.0, (7, 8, 1)), RIVAL: answer(1.5)}
    cell = cells_of(answers)[MINE]
    assert cell.seconds == 1.0 / 4 / 2  # four tokens in two rows
    assert cell.baselines == {names.EAGER: 1.0, RIVAL: 1.5 / 8}
    again = {peers.AGAIN: 2.0}
    assert cell.more == {peers.PREFILL: 0.25, peers.FIRST: 2.0, **again, peers.SAME: 2.0}
    assert cell.goals == {"1.2x ort-int4": True}
    shown = line(peers.TABLE, cell)
    assert all(text in shown for text in ("m x 2", " 250 ", " 8.0 ", " 1.50 ", "2.0", " 3 ", "met"))


def test_medians_are_over_processes_and_runs():
    found = peers.Found(MINE)
    found.answers = [Answer(1.0, [1.0], [1.0, 9.0], 1, [1]), Answer(3.0, [3.0], [2.0], 5, [1])]
    (cell,) = peers.table_cells("m", request(), [found])
    assert cell.seconds == 2.0 / 8
    assert cell.more == {peers.PREFILL: 2.0, peers.FIRST: 1.0, peers.AGAIN: 3.0}
    assert cell.peaks == {MINE: 5}


def test_what_is_missing_or_fails_is_named_with_its_reason():
    failed = ChildError("the process ended with exit status 1", "Traceback\n  x\nOops: a | b\n")
    answers = {MINE: answer(1.0), RIVAL: failed, names.OPENVINO: ChildError("late", late=True)}
    answers[names.LLAMA_CPP] = answer(1.0)
    cells = cells_of(answers, {names.LLAMA_CPP: "xllamacpp is not installed"})
    assert set(cells) == set(answers)
    assert cells[RIVAL].note == "Oops: a / b"
    assert cells[names.OPENVINO].note == "it took more than 5 s"
    assert cells[names.LLAMA_CPP].note == "xllamacpp is not installed"
    assert cells[RIVAL].seconds == float("inf") and RIVAL not in cells[MINE].baselines
    assert line(peers.TABLE, cells[RIVAL]).endswith("Oops: a / b")
    assert cells[MINE].goals == {}
    assert set(*peers.panels(list(cells.values())).values()) == {MINE}


def test_the_order_rotates_and_a_failure_is_not_repeated():
    order = []

    def start(asked, limit, caches):
        order.append(asked.runtime)
        if asked.runtime == RIVAL:
            raise ChildError("x")
        return answer(1.0)

    peers.measure(request(), {MINE: "", RIVAL: "", names.EAGER: ""}, options(), start)
    assert order == [MINE, RIVAL, names.EAGER, names.EAGER, MINE]


@pytest.mark.parametrize("batch", [1, 16])
def test_rows_differ_and_have_the_length(batch):
    found = peers.rows([5, 6, 7, 8, 9] * 4, 30, batch)
    assert len(found) == batch and {len(row) for row in found} == {30}
    assert found[0][:3] == [5, 6, 7]
    assert len({tuple(row) for row in found}) == min(batch, 5)


def test_a_process_stops_when_its_time_is_over():
    lengths = []

    class Slow:
        def generate(self, prompts, tokens):
            lengths.append(tokens)
            return Times(1.0, 2.0, [3])

    asked = request(seconds=0.0)
    found = measure_in_process(Slow(), Request.loads(asked.dumps()))
    assert lengths == [5, 5, 5] and found.decodes == [2.0] and found.tokens == [3]


def test_a_run_is_written_and_read_with_its_figures(tmp_path):
    run = results.Run("peers", {"isa": None}, list(cells_of({MINE: answer(1.0)}).values()))
    run.write(tmp_path / "run.json")
    assert results.read(tmp_path / "run.json") == run


def test_its_options_choose_a_part():
    chosen = "--table peers --models smollm2 --peers ours-int4 ort-int4 --rounds 1 --tokens 16"
    found = cli.parse(chosen.split())
    assert (found.models, found.rounds, found.tokens) == (["smollm2"], 1, 16)
    assert found.peers == ["ours-int4", "ort-int4"]
    assert "tiny" not in cli.parse(["--table", "peers"]).models
    assert "256 tokens in, 16 out" in " ".join(peers.notes(found).split())

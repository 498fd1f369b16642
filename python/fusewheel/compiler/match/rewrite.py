"""Matches patterns in a captured graph and replaces them by operators."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from fusewheel._torch.fx import is_erased
from fusewheel.compiler.cost import processor, rules
from fusewheel.compiler.cost.traffic import traffic
from fusewheel.compiler.ir.canonical import is_op, view
from fusewheel.compiler.ir.effects import Modes
from fusewheel.compiler.ir.metadata import bodies_of, note_failure, same_sizes, tensor_of
from fusewheel.compiler.ir.pattern import (
    Builder,
    Caller,
    Context,
    Match,
    Pattern,
    Refuse,
    is_assertion,
    require,
)
from fusewheel.compiler.ir.purity import is_pure
from fusewheel.compiler.ir.source import Line, line_of
from fusewheel.compiler.match.captured_experts import note_captured_experts
from fusewheel.compiler.match.checks import check, check_replacement
from fusewheel.compiler.match.registry import known_patterns
from fusewheel.compiler.match.report import Recorder, Report, size_text
from fusewheel.compiler.match.strides import follow, restrided
from fusewheel.compiler.match.switches import REASON, disabled
from fusewheel.compiler.read.attention import attention_of

_log = logging.getLogger("fusewheel.compiler")

# Higher-order operators that run their bodies as written. Others use them in a way of their own
# (score functions of attention, combine functions of scans, forward and backward of an
# autograd.Function); their bodies are left alone.
ENTERED = frozenset(
    {"tag_activation_checkpoint", "wrap_activation_checkpoint", "wrap", "cond", "invoke_subgraph"}
    # Export writes `torch.set_grad_enabled` and `torch.autocast` in this way.
    | {"wrap_with_set_grad_enabled", "wrap_with_autocast"}
)


def rewrite(
    module: GraphModule,
    *,
    patterns: Sequence[Pattern] | None = None,
    recorder: Recorder | None = None,
    inner: str | None = None,
) -> Report:
    """Rewrite a captured graph in place.

    Args:
        module: a graph from Dynamo or export whose nodes carry ``example_value`` or ``val``.
        patterns: the patterns to look for; default None, which means all.
        recorder: notes what happens; default None, which means a new one.
        inner: what runs the rewritten graph. With ``"inductor"`` and ``"none"`` the sizes count up
            to which an operator is slower, see `PaysAbove`. Default None.

    Returns:
        what was replaced and refused, including what `recorder` noted before.

    Raises:
        ValueError: if an environment variable of `fusewheel.compiler.cost` has a wrong value.
    """
    processor.facts()
    recorder = Recorder() if recorder is None else recorder
    chosen = known_patterns() if patterns is None else tuple(patterns)
    off = disabled()
    for body, facts in bodies(module).items():
        changed = [
            _Pass(facts, pattern, recorder, inner, pattern.name in off).run() for pattern in chosen
        ]
        if any(changed):
            body.graph.lint()
            body.recompile()
        note_captured_experts(facts.graph, recorder)
        if not recorder.counts_only:
            _note_attentions(facts, recorder)
    recorder.graphs += 1
    return recorder.report()


def _note_attentions(facts: _Facts, recorder: Recorder) -> None:
    for node in facts.graph.nodes:
        if is_op(node, "attention") and (found := attention_of(facts.context, node)) is not None:
            recorder.attention(line_of(node), found.mask.kind, found.shapes)


def bodies(module: GraphModule) -> dict[GraphModule, _Facts]:
    """The module and the bodies of its higher-order operators; each once, callers first."""
    found: dict[GraphModule, _Facts] = {}
    todo: list[tuple[GraphModule, Modes, list[tuple[_Facts, Node]]]] = [(module, Modes(), [])]
    while todo:
        current, modes, call = todo.pop()
        if current in found:
            found[current].calls += call
            continue
        facts = found[current] = _Facts(current.graph, modes, call)
        for node in current.graph.nodes:
            name = getattr(node.target, "_name", "") if node.op == "call_function" else ""
            if name in ENTERED:
                inside = modes
                if name == "wrap_with_autocast":
                    inside = replace(modes, autocast=(*modes.autocast, node.args[:4]))
                todo += [(body, inside, [(facts, node)]) for body in bodies_of(node)]
    return found


class _Facts:
    """Facts about one graph that all patterns need; `calls` are the nodes that call the graph."""

    def __init__(self, graph: Graph, modes: Modes, calls: list[tuple[_Facts, Node]]) -> None:
        self.graph = graph
        self.calls = calls
        self._modes = modes
        self._context: Context | None = None
        self._operations: dict[Node, str | None] = {}

    @property
    def context(self) -> Context:
        """Writes in place, shared memory and modes."""
        if self._context is None:
            self._context = Context(self.graph, self._modes, self._caller())
        return self._context

    def _caller(self) -> Caller | None:
        if len(self.calls) != 1:
            return None
        ((facts, node),) = self.calls
        inputs = [n for n in self.graph.nodes if n.op == "placeholder"]
        # The operands are the last arguments, behind the body; those of a branch are in a tuple.
        given = node.args[len(node.args) - len(inputs) :]
        nodes = [argument for argument in given if isinstance(argument, Node)]
        if len(nodes) != len(inputs):
            return None
        return Caller(facts.context, node, dict(zip(inputs, nodes, strict=True)))

    def anchors(self, pattern: Pattern) -> list[Node]:
        """The nodes at which a pattern can start."""
        return [node for node in self.graph.nodes if self._operation(node) in pattern.anchors]

    def _operation(self, node: Node) -> str | None:
        if node not in self._operations:
            found = view(node)
            self._operations[node] = None if found is None else found.op
        return self._operations[node]


class _Pass:
    """One pattern on one graph."""

    def __init__(
        self, facts: _Facts, pattern: Pattern, recorder: Recorder, inner: str | None, off: bool
    ) -> None:
        self._facts = facts
        self._inner = inner
        self._off = off
        self._pattern = pattern
        self._recorder = recorder
        self._estimates = not recorder.counts_only or _log.isEnabledFor(logging.INFO)

    def run(self) -> bool:
        """Rewrite every match; whether there was one."""
        anchors = self._facts.anchors(self._pattern)
        changed = False
        for node in anchors:
            if is_erased(node):
                continue
            try:
                changed |= self._visit(node)
            except Refuse as refusal:
                self._refused(line_of(node), str(refusal))
            except Exception:
                # Losing a rewrite is better than losing the user's model.
                if os.environ.get("FUSEWHEEL_COMPILER_STRICT"):
                    raise
                note_failure(self._facts.graph)
                text = "pattern %s failed and is skipped for this graph"
                _log.warning(text, self._pattern.name, exc_info=True)
                break
        return changed

    @property
    def _context(self) -> Context:
        return self._facts.context

    def _visit(self, node: Node) -> bool:
        match = self._pattern.match(self._context, node)
        if match is None:
            return False
        check(self._context, self._pattern, match)
        require(not self._off, REASON)
        line = line_of(max(match.roots))
        before = traffic(_dying(match)) if self._estimates else None
        after = self._apply(match)
        saved = None if before is None or after is None else before - after
        self._recorder.replaced(self._pattern.name, self._pattern.operator, line, saved)
        _log.info(
            "%s: %s replaced by %s%s",
            line.source,
            self._pattern.name,
            self._pattern.operator,
            f", saves about {size_text(saved)}" if saved else "",
        )
        return True

    def _refused(self, line: Line, reason: str) -> None:
        self._recorder.refused(self._pattern.name, line, reason)
        _log.debug("%s: %s kept: %s", line.source, self._pattern.name, reason)

    def _apply(self, match: Match) -> int | None:
        """Emit the operator; returns the bytes that it moves, None if nobody asks for them."""
        origin = max(match.roots)
        builder = Builder(self._context, match.place(), origin)
        try:
            built = zip(match.roots, match.build(builder), strict=True)
            results = [_detached(builder, root, result) for root, result in built]
            for node in builder.nodes:
                reason = rules.loss(node, self._inner, self._pattern)
                require(reason is None, str(reason))
            moved = traffic(builder.nodes) if self._estimates else None
            values = self._values(match.roots, results)
        except Exception:
            builder.discard()
            raise
        # Strides of other nodes changed too, and so may the memory that they share.
        others = values.keys() - set(builder.nodes)
        with self._context.effects.updating(others):
            for node, value in values.items():
                node.meta[builder.key] = value
        for node in builder.nodes:
            self._context.add(node, origin)
        for root, result in zip(match.roots, results, strict=True):
            root.replace_all_uses_with(result)
        self._sweep(match.computed)
        return moved

    def _values(self, roots: Sequence[Node], results: Sequence[Node]) -> dict[Node, Any]:
        """The new example values after a rewrite.

        A result takes the example value of its root, with its own strides. So values that share
        memory still show that they do, which the checks of later matches need.
        """
        own, changed = {}, {}
        for root, result in zip(roots, results, strict=True):
            check_replacement(root, result)
            old, new = tensor_of(root), tensor_of(result)
            assert old is not None and new is not None
            own[result] = old
            if not same_sizes(old.stride(), new.stride()):
                own[result] = restrided(self._context, root, old, new.stride())
                changed[root] = own[result]
        return own | follow(self._context, changed)

    def _sweep(self, nodes: Iterable[Node]) -> None:
        """Erase the given nodes, and the nodes that only they used, if nothing uses them any more.

        `Graph.eliminate_dead_code` cannot be used: it erases ``x.add_(y)`` if its result is unused.
        Here a node is erased only if the operator does its work, or if it is known to be pure.
        """
        own = frozenset(nodes)
        todo = sorted(own)
        while todo:
            node = todo.pop()
            if is_erased(node) or not (node in own or is_pure(node)):
                continue
            if not all(is_assertion(user) for user in node.users):
                continue
            for user in list(node.users):
                self._context.erase(user)
            inputs = list(node.all_input_nodes)
            self._context.erase(node)
            todo += inputs


def _detached(builder: Builder, root: Node, result: Node) -> Node:
    """The result, detached if its root requires no gradient but another result does."""
    old, new = tensor_of(root), tensor_of(result)
    if old is None or new is None or old.requires_grad or not new.requires_grad:
        return result
    return builder.call(torch.ops.aten.detach.default, result)


def _dying(match: Match) -> list[Node]:
    """The nodes that vanish with a match; absorbed ones stay if something else uses them."""
    computed = match.computed
    kept = {node for node in match.absorbed if any(user not in computed for user in node.users)}
    return sorted(computed - kept)

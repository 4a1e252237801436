"""From a request for a proposal to the messages of a chat.

The system message holds what stays the same for a whole run, so that endpoints that keep prompts can keep it; the user
message holds the action. A pure function of the request: equal requests give equal messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelevo_api.types import CheckedOn, Device, DeviceKind, Language, LanguageSupport
from kernelevo_searcher.llm.feedback import Feedback, feedback_on
from kernelevo_searcher.memory.lessons import lesson_line
from kernelevo_searcher.prompts import one_line
from kernelevo_searcher.proposers import ActionKind, CandidateView, IdeaOutcome, ProposalRequest

if TYPE_CHECKING:
    from kernelevo_searcher.prompts import PromptLibrary

__all__ = ["MODEL_ACTIONS", "PromptSettings", "build_messages"]

MODEL_ACTIONS = frozenset({ActionKind.REWRITE, ActionKind.REFINE, ActionKind.FIX, ActionKind.MERGE, ActionKind.RESTART})
_NEEDS_PARENT = frozenset({ActionKind.REFINE, ActionKind.FIX, ActionKind.MERGE})

_ANGLES = {
    DeviceKind.CPU: (
        "one pass over memory with every intermediate in registers or the L1 cache",
        "vector intrinsics with several independent accumulators",
        "blocking for the L2 cache, with work split over cores by blocks",
        "cheaper arithmetic: polynomial approximations, fused multiply-adds, reciprocals instead of divisions",
        "an algebraic reformulation that needs fewer passes or operations",
    ),
    DeviceKind.CUDA: (
        "one fused kernel with every intermediate in registers",
        "wide vectorised loads with several rows or tiles for each program",
        "a persistent grid of about one or two blocks for each multiprocessor",
        "shared-memory tiles with software pipelining",
        "an algebraic reformulation that needs fewer passes or operations",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """How much goes into a prompt, and what it asks for."""

    edits: bool = False
    """Ask for SEARCH/REPLACE edits where a parent is changed, not for the whole file; for models that can write them."""
    ledger_ideas: int = 24
    """Of the ledger: the best third, and the latest."""
    children_ideas: int = 12
    examples: int = 3


@dataclass(frozen=True, slots=True)
class _LanguageNote:
    name: str
    notes: str
    interpreted: bool


@dataclass(frozen=True, slots=True)
class _Shown:
    label: str
    source: str
    idea: str
    feedback: Feedback


def build_messages(request: ProposalRequest, prompts: PromptLibrary, settings: PromptSettings) -> list[dict[str, str]]:
    """System and user message for `request`.

    Raises:
        ValueError: a model cannot carry out this action, or it lacks its parent.
        PromptError: a template is broken.
    """
    if request.action not in MODEL_ACTIONS:
        raise ValueError(f"no model is needed to {request.action.value}")
    if request.action in _NEEDS_PARENT and request.parent is None:
        raise ValueError(f"{request.action.value} needs a parent")
    if request.action is ActionKind.MERGE and request.other is None:
        raise ValueError("merge needs a second parent")
    device = _device(request)
    languages = _languages(request, device)
    parent = request.parent
    children = [idea for idea in request.tried if parent is not None and idea.parent_id == parent.id]
    others = [idea for idea in request.tried if parent is None or idea.parent_id != parent.id]
    values: dict[str, object] = {
        "request": request,
        "report": request.report,
        "policy": request.report.policy,
        "device": device,
        "on_cpu": device is None or device.kind is not DeviceKind.CUDA,
        "tools": [f"{tool.name} {tool.version}".strip() for tool in request.capabilities.toolchain],
        "languages": languages,
        "parent": _shown(parent, f"Its idea: {one_line(parent.idea)}" if parent.idea else "") if parent else None,
        "other": _shown(request.other, f"Its idea: {one_line(request.other.idea)}") if request.other else None,
        "failure": feedback_on(request.failure or (parent.evaluation if parent else None)),
        "children": [_idea_line(idea) for idea in children[-settings.children_ideas :]],
        "ledger": [_idea_line(idea) for idea in _chosen(others, settings.ledger_ideas)],
        "examples": [
            _shown(example, f"Candidate {example.id}" + (f": {one_line(example.idea)}" if example.idea else ""))
            for example in request.examples[: settings.examples]
        ],
        "lessons": [lesson_line(lesson) for lesson in request.lessons],
        "edits": settings.edits,
        "angle": _angle(request, device),
    }
    return [
        {"role": "system", "content": prompts.render("system.j2", **values)},
        {"role": "user", "content": prompts.render(f"{request.action.value}.j2", **values)},
    ]


def _shown(view: CandidateView, label: str) -> _Shown:
    return _Shown(label=label, source=view.source, idea=view.idea, feedback=feedback_on(view.evaluation))


def _device(request: ProposalRequest) -> Device | None:
    devices = request.capabilities.devices
    return next((device for device in devices if device.healthy), devices[0] if devices else None)


def _languages(request: ProposalRequest, device: Device | None) -> list[_LanguageNote]:
    """The languages that a candidate may be in here: the one asked for, else the parent's, else all that are allowed."""
    supported = {
        support.language: support
        for support in request.capabilities.languages
        if support.language is not None
        and (device is None or support.device_kind is None or support.device_kind is device.kind)
    }
    wanted: list[Language]
    keeps_parent = request.action in _NEEDS_PARENT
    if request.language is not None:
        wanted = [request.language]
    elif keeps_parent and request.parent is not None and request.parent.language is not None:
        wanted = [request.parent.language]
    else:
        allowed = request.report.policy.languages if request.report.policy is not None else ()
        wanted = [language for language in (allowed or tuple(Language)) if language in supported]
        timed = [language for language in wanted if not _interpreted(supported[language])]
        # What only runs in an interpreter can never be the result: it is named only where there is nothing else.
        wanted = timed or wanted or list(allowed) or [Language.TORCH]
    return [
        _LanguageNote(
            name=language.value,
            notes=supported[language].notes if language in supported else "",
            interpreted=language in supported and _interpreted(supported[language]),
        )
        for language in wanted
    ]


def _interpreted(support: LanguageSupport) -> bool:
    return support.checked_on is CheckedOn.INTERPRETER


def _chosen(ideas: list[IdeaOutcome], limit: int) -> list[IdeaOutcome]:
    """The best third and the latest, in their order."""
    if len(ideas) <= limit:
        return ideas
    order = sorted(range(len(ideas)), key=lambda at: -(ideas[at].speedup or 0.0))
    kept = set(order[: limit // 3])
    for at in reversed(range(len(ideas))):
        if len(kept) == limit:
            break
        kept.add(at)
    return [ideas[at] for at in sorted(kept)]


def _idea_line(idea: IdeaOutcome) -> str:
    return f"- {idea.action.value}: {one_line(idea.idea) or 'unnamed'} -> {one_line(idea.outcome, 160)}"


def _angle(request: ProposalRequest, device: Device | None) -> str:
    """One of several directions, by the request's seed, so that equal prompts do not draw equal replies."""
    if request.action not in {ActionKind.REWRITE, ActionKind.RESTART} or not request.tried:
        return ""
    angles = _ANGLES[device.kind if device is not None and device.kind is not None else DeviceKind.CPU]
    return angles[request.seed % len(angles)]

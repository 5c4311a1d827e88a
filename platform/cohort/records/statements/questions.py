"""The table of questions about a run that only a person can answer. Knows no Django."""

from dataclasses import dataclass
from typing import Literal, get_args

from cohort.records.fields import field_facts
from cohort.records.schema_types import Audience

Kind = Literal["choice", "several", "text", "link", "number", "stages"]
Answerer = Literal["reviewer", "operator", "admin"]
StageKind = Literal[
    "pretraining", "sft", "cold_start", "rejection_sampling", "distillation", "grpo", "reward_model", "other"
]
STAGE_KINDS: tuple[StageKind, ...] = get_args(StageKind)
STAGE_WORDS: dict[StageKind, str] = {
    "pretraining": "pretraining",
    "sft": "supervised fine-tuning",
    "cold_start": "cold start",
    "rejection_sampling": "rejection sampling",
    "distillation": "distillation",
    "grpo": "reinforcement learning in groups (GRPO and kin)",
    "reward_model": "a reward model's training",
    "other": "another stage",
}


@dataclass(frozen=True)
class Question:
    field: str
    """section.field of the record."""
    asks: str
    help: str
    """What a useful answer holds, with an example where one helps."""
    kind: Kind
    why: str
    """Why a machine cannot know."""
    choices: tuple[tuple[str, str], ...] = ()
    """(value in the record, words) of choice and several."""
    required: bool = False
    """Required for every run: the record notes when it was not answered."""
    answered_by: Answerer = "reviewer"
    """Least role that answers: who accepts a risk or decides what outsiders see is an operator."""
    standing: bool = False
    """Whether a project keeps one answer for all its runs, such as where its inventory is."""

    joined: bool = False
    """Whether the record joins the answer with what was measured, so that it does not hold these words alone."""

    @property
    def name(self) -> str:
        """As part of an address or an id."""
        return self.field.replace(".", "-")

    @property
    def section(self) -> str:
        return self.field.partition(".")[0]

    @property
    def label(self) -> str:
        return field_facts(self.field).label

    @property
    def audience(self) -> Audience:
        """Who sees the answer unless its author chooses another audience."""
        return field_facts(self.field).audience

    def words_of(self, value: str) -> str:
        return dict(self.choices)[value]


QUESTIONS: tuple[Question, ...] = (
    Question(
        "reward.verifiable_or_social",
        "Is what is rewarded verifiable, or a social judgement?",
        "A proof, a test or a number can be checked by anyone. Persuasion, ideology, trust, intimacy, moderation or "
        "advice to institutions cannot: there the reward itself is a choice of values, and the record should say "
        "whose.",
        "choice",
        "Whether a rule stands for a fact or for somebody's preference is not in its code.",
        (
            ("verifiable", "verifiable: anyone can check what is right"),
            ("social", "social: somebody's judgement decides what is right"),
            ("both", "both: parts of the reward are of each kind"),
        ),
        required=True,
    ),
    Question(
        "reward.domain",
        "Which domains supplied rewards?",
        "All that the training problems belong to. Say more in words: which mathematics, whose moderation rules.",
        "several",
        "Problems do not name their domain.",
        (
            ("mathematics", "mathematics"),
            ("code", "code"),
            ("science", "science"),
            ("formal", "logic and formal constraints"),
            ("format", "output format and structure"),
            ("tool_use", "tool use"),
            ("instructions", "following instructions"),
            ("language", "language, style or translation"),
            ("knowledge", "factual knowledge"),
            ("safety", "refusing and safe behaviour"),
            ("moderation", "moderation"),
            ("persuasion", "persuasion or opinion"),
            ("companionship", "trust, companionship or intimacy"),
            ("advice", "advice to people or institutions"),
            ("other", "other"),
        ),
    ),
    Question(
        "reward.brittleness",
        "Where is the reward known to be brittle?",
        "Right answers that it refuses, wrong ones that it rewards, shortcuts seen. “None known” is an answer.",
        "text",
        "A probe finds what it looks for; what you have seen elsewhere it cannot know.",
        joined=True,
    ),
    Question(
        "reward.disclosure",
        "May anyone see the verifier's specification?",
        "Where showing it would teach how to get around it, keep it from the public and say why. Those who build "
        "on the model still get it, and the complete config with it.",
        "choice",
        "Whether disclosure is safe is a judgement.",
        (
            ("public", "anyone may see it"),
            ("withheld", "not public: those who build on the model and authorities may"),
        ),
        answered_by="operator",
        standing=True,
    ),
    Question(
        "data.choice",
        "Why was this dataset chosen, and how were its problems selected before they came here?",
        "Filters, languages, sources left out, and what the problems should represent.",
        "text",
        "The file says what it holds, not why.",
    ),
    Question(
        "data.provenance",
        "Where is the record of where the data comes from?",
        "A link to a data sheet, a Croissant file or a contract; or the words: who made the problems, when, under "
        "which licence.",
        "link",
        "The file does not say where it was before.",
    ),
    Question(
        "subject.pipeline",
        "What went into the model before and after this run?",
        "One stage a line, the oldest first, as `kind: what is known of it`. Kinds: "
        + ", ".join(STAGE_KINDS)
        + ". Example: `pretraining: 18 T tokens of web text and code, by the maker of the base model`. This run is "
        "added where you write `grpo: this run`, or at the end.",
        "stages",
        "Weights do not show how they were made.",
        joined=True,
    ),
    Question(
        "method.rationale",
        "Why were these settings chosen, and on which assumptions?",
        "The design choices that matter and what you expect of them. Authorities ask for it.",
        "text",
        "The config says what, not why.",
    ),
    Question(
        "budget.base_share",
        "How much compute did training the base model take?",
        "In FLOP, such as 1.2e22, with its source in words. The record divides this run's estimate by it.",
        "number",
        "It was spent elsewhere.",
        joined=True,
    ),
    Question(
        "behaviour.tool_use",
        "Does tool use matter for what this model is for?",
        "Asked because no suite of tool use was run, or may not be. If it matters, run one.",
        "choice",
        "The use is yours to decide.",
        (("relevant", "it matters"), ("not_relevant", "it does not matter")),
        joined=True,
    ),
    Question(
        "behaviour.safety_regressions",
        "What was decided about safety results that regressed or stayed undecided?",
        "Who decided, on what ground, and what is done about it. The test's own words stay with it.",
        "text",
        "A test gives a verdict; what follows from it people decide.",
        answered_by="operator",
        joined=True,
    ),
    Question(
        "handling.trace_policy",
        "What do users see of the model's reasoning traces?",
        "Traces trained for reward may be behaviour rather than a record of what happened inside.",
        "choice",
        "It depends on the product around the model.",
        (
            ("hidden", "hidden: users do not see them"),
            ("summarised", "summarised: users see a summary"),
            ("filtered", "filtered: users see them after a filter"),
            ("exposed", "exposed: users see them as they are"),
            ("no_traces", "the model writes none"),
        ),
        standing=True,
    ),
    Question(
        "handling.inventory",
        "Where is this model in your inventory of AI systems?",
        "A link or the entry's number.",
        "link",
        "The inventory is kept elsewhere.",
        standing=True,
    ),
    Question(
        "handling.system_card",
        "Is there a card of the system that the model goes into?",
        "A link. This record's own CARD.md is a model card; a system has more parts.",
        "link",
        "The system is built elsewhere.",
        standing=True,
    ),
    Question(
        "handling.change_management",
        "By which process are changes to this model approved?",
        "A link or its name, and who approves. Records of two runs can be compared on the page “Compare records”.",
        "link",
        "Approval is your organisation's.",
        standing=True,
    ),
    Question(
        "handling.monitoring",
        "What is the plan for watching the model after release?",
        "A link or the words: what is watched, by whom, how often, and where incidents are reported.",
        "link",
        "It begins when the run is over.",
        standing=True,
    ),
    Question(
        "handling.contact",
        "Who answers questions about this model, and takes reports of incidents?",
        "A name or an office, and how to reach it: an address, a form, a telephone number.",
        "link",
        "It is a person or an office.",
        standing=True,
    ),
)
BY_FIELD: dict[str, Question] = {question.field: question for question in QUESTIONS}
STANDING: tuple[Question, ...] = tuple(question for question in QUESTIONS if question.standing)
"""What a project may answer once for all its runs."""

OVERRIDES = "oversight.overrides"
"""Field of statements that override a flag, followed by `:<flag>`: one statement a flag."""


def override_field(flag: str) -> str:
    return f"{OVERRIDES}:{flag}"


def is_override_field(field: str) -> bool:
    return field.startswith(override_field(""))

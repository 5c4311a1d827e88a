"""What the run form offers to choose from, by the kind of run: rows of the project's catalog, and nodes."""

from dataclasses import dataclass

from cohort.accounts.models import Project
from cohort.catalog.models import BaseModel, DatasetContent, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.launch.configs import CONTENTS
from cohort.runs.schedule import NodeCapacity, node_capacities
from cohort.web.catalog.selectors import Offered, base_models_offered
from grpo_core.config.kinds import CONFIGS
from grpo_core.config.stage import Kind

ROWS = ("base_model", "dataset", "eval_dataset", "verifier_version", "eval_verifier_version")
DECIDED = {
    "eval_dataset": "eval.path",
    "verifier_version": "reward",
    "eval_verifier_version": "eval.reward",
    "more": "data.more",
    "heldout": "data.heldout_path",
    "replay": "data.replay_path",
    "suites": "eval.suites",
}
"""Choice of rows → what of a config it decides: a kind whose config lacks that has no such choice."""


def kind_named(text: str) -> Kind:
    """GRPO for a text that names none."""
    return next((kind for kind in CONFIGS if kind == text), "grpo")


@dataclass(frozen=True)
class Choices:
    """What the project's catalog and the machines offer; read once per form."""

    base_models: Offered[BaseModel]
    datasets: Offered[PromptDataset]
    """With rows of the content that the kind reads."""
    problems: Offered[PromptDataset]
    """To evaluate on."""
    verifier_versions: Offered[VerifierVersion]
    suite_versions: tuple[EvalSuiteVersion, ...]
    """All of them: an older one may be what a clone is evaluated on."""
    nodes: tuple[NodeCapacity, ...]
    """Nodes that are here."""

    @classmethod
    def read(cls, project: Project, find: str = "", kind: Kind = "grpo") -> "Choices":
        """`find`: part of a name, to choose from lists that are too long to be offered whole."""
        rows = PromptDataset.objects.filter(project=project).defer("preview")
        own = rows.filter(content=CONTENTS[kind], **({"sampled_by__isnull": False} if kind == "distill" else {}))
        datasets = Offered(own, find)
        problems = DatasetContent.PROBLEMS
        versions = VerifierVersion.objects.filter(verifier__project=project).select_related("verifier")
        return cls(
            Offered(base_models_offered(project), find),
            datasets,
            datasets if CONTENTS[kind] == problems else Offered(rows.filter(content=problems), find),
            Offered(versions, find, name="verifier__name"),
            tuple(EvalSuiteVersion.objects.filter(suite__project=project).select_related("suite").order_by("pk")),
            node_capacities(),
        )

    @property
    def more(self) -> bool:
        """Whether a list is too long to be offered whole."""
        return self.base_models.more or self.datasets.more or self.verifier_versions.more

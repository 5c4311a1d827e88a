"""What is known of the reward of a run that another trainer made: the names of its components, their weights as
stated by the importer, and which of them means right. It stands in for `RewardConfig` where samples are reviewed."""

from collections.abc import Collection

from pydantic import BaseModel, ConfigDict


class ImportedComponent(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """As the file has it."""
    weight: float
    """Factor in the reward; 0 for a column that is shown and not rewarded."""


class ImportedReward(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    components: tuple[ImportedComponent, ...]
    success: str
    """Name of the component that means right: where nothing states right or wrong, no sample has a verdict by it."""

    def success_of(self, names: Collection[str]) -> str:
        """As of RewardConfig. Where the sample lacks the component, one that has no verdict."""
        return self.success if self.success in names else next(iter(names))

    @property
    def success_component(self) -> str:
        return self.success

"""Sampled groups and their completions, and answers of a chat, as people and other rewards review them."""

from cohort.review.models.imports import RunImport
from cohort.review.models.judging import (
    Annotation,
    AnswerJudgement,
    PairVote,
    QueueOrder,
    ReviewClaim,
    ReviewItem,
    ReviewLabel,
    ReviewQueue,
    Verdict,
)
from cohort.review.models.rescores import Change, Rescore, RescoredSample
from cohort.review.models.samples import (
    DatasetFile,
    Group,
    Sample,
    SampleWords,
    StepCommitments,
    TokenFile,
    WordsPosition,
)

__all__ = [
    "Annotation",
    "AnswerJudgement",
    "Change",
    "DatasetFile",
    "Group",
    "PairVote",
    "QueueOrder",
    "Rescore",
    "RescoredSample",
    "ReviewClaim",
    "ReviewItem",
    "ReviewLabel",
    "ReviewQueue",
    "RunImport",
    "Sample",
    "SampleWords",
    "StepCommitments",
    "TokenFile",
    "Verdict",
    "WordsPosition",
]

"""Keeps the rows by which the list finds runs (`RunValue`) as their configs and current evaluations have it.

Called by whatever changes one of those, in its transaction and with the run locked or new. In SQL, so that the settings
of a run take one statement.
"""

from collections.abc import Mapping

from django.db import connection

from cohort.runs.models import Run, RunValue

VERDICT = "evaluation.verdict."
"""Begins the keys of verdicts, of one suite each."""
VARIANT = "variant"
"""Key of a run's normalization variant: advantage/scale/std_ddof."""
KEY_CHARACTERS = 400
"""A longer path, such as one through a name that somebody gave a parameter, has no row: no index could hold it."""

_LEAVES = """
    WITH RECURSIVE leaf (run_id, project_id, key, value) AS (
        SELECT run.id, run.project_id, part.key, part.value FROM runs_run AS run, jsonb_each(run.config) AS part
        WHERE run.id = %(run)s
        UNION ALL
        SELECT leaf.run_id, leaf.project_id, leaf.key || '.' || part.key, part.value
        FROM leaf, LATERAL (
            SELECT key, value FROM jsonb_each(CASE jsonb_typeof(leaf.value) WHEN 'object' THEN leaf.value END)
            UNION ALL
            SELECT (place - 1)::text, item
            FROM jsonb_array_elements(CASE jsonb_typeof(leaf.value) WHEN 'array' THEN leaf.value END)
                WITH ORDINALITY AS items (item, place)
        ) AS part
    )
"""
# A whole number of a reward's parameters may be larger, and a fraction smaller, than a double can be.
_CONFIG = f"""
    {_LEAVES}
    INSERT INTO runs_runvalue (run_id, project_id, key, number, text)
    SELECT run_id, project_id, key,
           CASE WHEN jsonb_typeof(value) = 'number' THEN
               CASE WHEN value::numeric = 0 OR abs(value::numeric) BETWEEN 1e-300 AND 1e300 THEN value::float8 END
           END,
           CASE WHEN jsonb_typeof(value) = 'number' THEN '' ELSE value #>> '{{}}' END
    FROM leaf
    WHERE jsonb_typeof(value) IN ('number', 'string', 'boolean') AND length(key) <= {KEY_CHARACTERS}
    UNION ALL
    SELECT id, project_id, '{VARIANT}', NULL, concat_ws(
        '/', coalesce(config #>> '{{algorithm,advantage}}', 'group'), config #>> '{{algorithm,scale}}',
        config #>> '{{algorithm,std_ddof}}'
    )
    FROM runs_run WHERE id = %(run)s AND config ? 'algorithm'
"""
_SETTINGS = "DELETE FROM runs_runvalue WHERE run_id = %(run)s AND key NOT LIKE 'evaluation.%%'"
_SCORES = "DELETE FROM runs_runvalue WHERE run_id = %(run)s AND key LIKE 'evaluation.%%'"
# Which evaluations are current: as `transitions.current_evaluations`.
_EVALUATIONS = """
    WITH score AS (
        SELECT DISTINCT ON (result.suite, result.phase)
            result.run_id, run.project_id, result.suite, result.phase,
            least(1, result.correct / (result.problems - result.errors)) AS share
        FROM runs_evalresult AS result
        JOIN runs_attempt AS attempt ON attempt.id = result.attempt_id
        JOIN runs_run AS run ON run.id = result.run_id
        WHERE result.run_id = %(run)s AND result.problems > result.errors
            AND (attempt.valid_through IS NULL
                OR (result.phase = 'before' AND attempt.valid_through >= 0)
                OR (result.phase = 'during' AND attempt.valid_through >= result.step))
        ORDER BY result.suite, result.phase, result.attempt_id DESC, result.seq DESC
    )
    INSERT INTO runs_runvalue (run_id, project_id, key, number, text)
    SELECT run_id, project_id, concat_ws('.', 'evaluation', phase, suite), share, '' FROM score
    UNION ALL
    (SELECT DISTINCT ON (suite) run_id, project_id, 'evaluation.newest.' || suite, share, ''
     FROM score ORDER BY suite, array_position(ARRAY['after', 'during', 'before'], phase::text))
"""


def config_values_store(*, run_id: int) -> None:
    """Of the config that is stored: every number, text and truth value in it, and its variant."""
    _replace(_SETTINGS, _CONFIG, run_id)


def evaluation_values_store(*, run_id: int) -> None:
    """Of the run's evaluations: the mean score of scored answers, of the newest current one by suite and phase."""
    _replace(_SCORES, _EVALUATIONS, run_id)


def verdict_values_store(*, run: Run, verdicts: Mapping[str, str]) -> None:
    """Of the run's record: what it says of each suite, by its name. Further evaluations take them away, until they are
    in a record too."""
    RunValue.objects.filter(run=run, key__startswith=VERDICT).delete()
    RunValue.objects.bulk_create(
        RunValue(run=run, project_id=run.project_id, key=f"{VERDICT}{suite}", text=text)
        for suite, text in verdicts.items()
    )


def _replace(delete: str, insert: str, run_id: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(delete, {"run": run_id})
        cursor.execute(insert, {"run": run_id})

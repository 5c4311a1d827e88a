"""The database's own guards of runs: which state follows which, fences that only rise, ended attempts that stay ended,
events and imported results that are only added.

The pairs of states are no model: they change by a migration alone, which first says ALTER TABLE runs_transition DISABLE
TRIGGER runs_guard_pairs, and ENABLE after it. None of this holds against who owns the tables: that role can disable
every trigger.
"""

from django.db import migrations

from migrations.append_only import append_only

PAIRS = """
    ('draft', 'queued'), ('draft', 'cancelled'),
    ('queued', 'starting'), ('queued', 'paused'), ('queued', 'failed'), ('queued', 'cancelled'),
    ('starting', 'evaluating'), ('starting', 'training'), ('starting', 'paused'), ('starting', 'queued'),
    ('starting', 'sealing'), ('starting', 'failed'), ('starting', 'cancelled'),
    ('evaluating', 'training'), ('evaluating', 'paused'), ('evaluating', 'queued'), ('evaluating', 'sealing'),
    ('evaluating', 'failed'), ('evaluating', 'cancelled'),
    ('training', 'evaluating'), ('training', 'paused'), ('training', 'queued'), ('training', 'sealing'),
    ('training', 'failed'), ('training', 'cancelled'),
    ('paused', 'queued'), ('paused', 'cancelled'),
    ('sealing', 'succeeded'), ('sealing', 'failed'),
    ('succeeded', 'queued'), ('failed', 'queued'), ('cancelled', 'queued')
"""

FORWARD = f"""
CREATE TABLE runs_transition (
    from_state varchar(12) NOT NULL,
    to_state varchar(12) NOT NULL,
    PRIMARY KEY (from_state, to_state)
);
INSERT INTO runs_transition (from_state, to_state) VALUES {PAIRS};

CREATE FUNCTION runs_guard_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state <> OLD.state AND NOT EXISTS (
        SELECT FROM runs_transition WHERE from_state = OLD.state AND to_state = NEW.state
    ) THEN
        RAISE EXCEPTION 'run % is % and cannot become %', OLD.id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'runs_transition';
    END IF;
    IF NEW.fence < OLD.fence THEN
        RAISE EXCEPTION 'the fence of run % cannot fall from % to %', OLD.id, OLD.fence, NEW.fence
            USING ERRCODE = 'check_violation', CONSTRAINT = 'runs_fence_rises';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER runs_guard_run BEFORE UPDATE OF state, fence ON runs_run
    FOR EACH ROW EXECUTE FUNCTION runs_guard_run();

CREATE FUNCTION runs_guard_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state <> 'running' AND NEW.state <> OLD.state THEN
        RAISE EXCEPTION 'attempt % has ended as % and cannot become %', OLD.id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'attempt_ends_once';
    END IF;
    IF NEW.fence <> OLD.fence OR NEW.acked_seq < OLD.acked_seq THEN
        RAISE EXCEPTION 'attempt %: the fence is fixed and acknowledged records stay so', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'attempt_only_grows';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER runs_guard_attempt BEFORE UPDATE OF state, fence, acked_seq ON runs_attempt
    FOR EACH ROW EXECUTE FUNCTION runs_guard_attempt();

CREATE FUNCTION runs_guard_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'events are only added: event % of run % stays as it is', OLD.id, OLD.run_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'events_are_only_added';
END $$;
CREATE TRIGGER runs_guard_event BEFORE UPDATE OR DELETE ON runs_runevent
    FOR EACH ROW EXECUTE FUNCTION runs_guard_event();

CREATE FUNCTION runs_guard_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'events are only added: the table is not emptied'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'events_are_only_added';
END $$;
CREATE TRIGGER runs_guard_events BEFORE TRUNCATE ON runs_runevent
    FOR EACH STATEMENT EXECUTE FUNCTION runs_guard_events();

CREATE FUNCTION runs_guard_pairs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'which state may follow which changes by a migration alone'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'pairs_are_fixed';
END $$;
CREATE TRIGGER runs_guard_pairs BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON runs_transition
    FOR EACH STATEMENT EXECUTE FUNCTION runs_guard_pairs();
"""

BACKWARD = """
DROP TRIGGER runs_guard_pairs ON runs_transition;
DROP FUNCTION runs_guard_pairs;
DROP TRIGGER runs_guard_events ON runs_runevent;
DROP FUNCTION runs_guard_events;
DROP TRIGGER runs_guard_event ON runs_runevent;
DROP FUNCTION runs_guard_event;
DROP TRIGGER runs_guard_attempt ON runs_attempt;
DROP FUNCTION runs_guard_attempt;
DROP TRIGGER runs_guard_run ON runs_run;
DROP FUNCTION runs_guard_run;
DROP TABLE runs_transition;
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0001_initial")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD), *append_only("runs_importedresult")]

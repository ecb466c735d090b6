-- Prepares the service's database on one node of a Citus cluster: docs/scaling.md, "Citus".
-- Run it as a superuser in the new database of each node, the workers first.

CREATE EXTENSION citus;

DO $$ DECLARE setting text; BEGIN
    FOREACH setting IN ARRAY ARRAY[
        -- The sessions of Citus on this node do not have the settings of the service's sessions.
        'jit',
        'enable_seqscan',
        -- Otherwise the look-up of types at each new connection takes a second or more.
        'citus.override_table_visibility'
    ] LOOP
        EXECUTE format('ALTER DATABASE %I SET %s = off', current_database(), setting);
    END LOOP;
END $$;

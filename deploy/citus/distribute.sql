-- Distributes the tables of the service on a Citus cluster: docs/scaling.md, "Citus".
-- Run it on the coordinator, once the schema is migrated and while nothing writes:
--   psql "$CONTEXT_DATABASE_URL" --set ON_ERROR_STOP=1 --file deploy/citus/distribute.sql
-- A new table needs its line here, and in the migration that adds it.

-- The triggers of conversations and states write rows of the same conversation, on the same node.
SET citus.enable_unsafe_triggers = on;
SET citus.multi_shard_modify_mode = 'sequential';

-- Small, and joined with conversations: a copy on every node. A write goes to all of them.
SELECT create_reference_table('tenants');
SELECT create_reference_table('api_keys');
SELECT create_reference_table('agents');
SELECT create_reference_table('agent_versions');
SELECT create_reference_table('models');
SELECT create_reference_table('calibrations');
SELECT create_reference_table('snapshots');

-- Counted or kept for a tenant, never joined: by tenant, wherever that is.
SELECT create_distributed_table('tenant_usage', 'tenant_id', colocate_with => 'none');

-- A conversation and all that belongs to it, on one node.
SELECT create_distributed_table('conversations', 'conversation_id', colocate_with => 'none');
SELECT create_distributed_table('states', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('messages', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('message_words', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('redactions', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('conversation_versions', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('idempotency_keys', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('compactions', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('compaction_leases', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('pins', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('epochs', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('prompt_texts', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('usage_reports', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('conversation_usage', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('events', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('jobs', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('blobs', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('blob_chunks', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('blob_uses', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('blob_uploads', 'conversation_id', colocate_with => 'conversations');
SELECT create_distributed_table('snapshot_parts', 'conversation_id', colocate_with => 'conversations');

-- The rows that the tables had before are on the shards now.
DO $$ DECLARE placed regclass; BEGIN
    FOR placed IN SELECT logicalrelid FROM pg_dist_partition LOOP
        PERFORM truncate_local_data_after_distributing_table(placed);
    END LOOP;
END $$;

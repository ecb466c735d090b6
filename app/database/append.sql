-- Appends a batch to the log of a conversation, all of it or nothing [log.one-statement].
--
-- 1. `rows` has the messages by the columns of their table. Their `seq` is that in the batch, their
--    `turn` and `total_tokens` are running sums within it. Their `at` is the newest time up to them,
--    their `late_at` the timestamp that they have.
-- 2. The lock of the state orders concurrent writers. Nothing is stored, and nothing returned, unless
--    the log and the settings are still those for which the batch was prepared. The caller finds
--    the reason.
-- 3. Of the calls, the batch answers `answered_calls`, which are open before it; after it
--    `closed_calls` are open no longer, and `opened_calls` are open: those of its messages with these
--    `opened_indices`. The last call group begins at `group_index`, null where no new one does. Its
--    calls that the provider runs are `running_calls`, null where these stay as they are.
-- 4. It returns the state after the batch.
CREATE FUNCTION append(
    conversation_id uuid, tenant_id text,
    counter text, model text, expected_seq bigint, client_ids text[],
    settings_at timestamptz, agent_at timestamptz, model_at timestamptz,
    due_tokens bigint, due_messages bigint, named_tools text[],
    window_seconds bigint, window_start timestamptz,
    answered_calls text[], closed_calls text[], opened_calls text[], opened_indices bigint[],
    group_index bigint, running_calls text[], is_answering boolean, begins_answer boolean, is_known boolean,
    max_open_calls bigint, received_at timestamptz, oldest_sent timestamptz, newest_at timestamptz,
    new_messages bigint, new_turns bigint, new_tokens bigint,
    format text, rows json
)
RETURNS SETOF states LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    begun_at CONSTANT timestamptz := now();  -- Citus takes no now() in CASE
    h states;
    stored states;
BEGIN
    SELECT old.* INTO h
    FROM states old JOIN conversations c ON c.conversation_id = old.conversation_id
    WHERE old.conversation_id = append.conversation_id AND c.tenant_id = append.tenant_id
        AND (c.expires_at IS NULL OR c.expires_at > now())
        AND c.updated_at = settings_at
        AND agent_at IS NOT DISTINCT FROM (
            SELECT a.updated_at FROM agents a
            WHERE a.tenant_id = c.tenant_id AND a.agent_id = c.agent_id
        )
        AND model_at IS NOT DISTINCT FROM (
            SELECT m.updated_at FROM models m
            WHERE m.tenant_id = c.tenant_id AND m.model = append.model
        )
        AND old.counter = append.counter
        AND old.head_seq = coalesce(expected_seq, old.head_seq)
        AND old.open_calls @> answered_calls
        -- The state that the shape of a batch expects that was made without the log, `BatchShape`.
        -- Nothing joins a call group that is too old by now: its active window has to be moved before.
        AND (is_known OR cardinality(old.open_calls) <= max_open_calls AND (
            cardinality(answered_calls) = 0 AND NOT begins_answer OR NOT (
                begins_answer AND cardinality(old.provider_calls) > 0
                OR cardinality(answered_calls) > 0 AND (
                    old.window_seconds IS DISTINCT FROM append.window_seconds
                    OR coalesce(old.oldest_at <= greatest(old.cleared_at, window_start), false)
                )
                OR EXISTS (
                    SELECT FROM unnest(old.open_calls, old.open_seqs) AS o (call, seq)
                    WHERE CASE WHEN o.call = ANY (answered_calls) THEN o.seq < old.group_seq
                        ELSE begins_answer AND o.seq >= old.group_seq END
                )
            )
        ))
    FOR NO KEY UPDATE OF old;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF cardinality(client_ids) > 0 THEN  -- under the lock, because concurrent ones may be stored
        PERFORM FROM messages m
        WHERE m.conversation_id = append.conversation_id AND m.message_id = ANY (client_ids);
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;

    UPDATE states AS new SET
        head_seq = h.head_seq + new_messages,
        turns = h.turns + new_turns,
        tokens = h.tokens + new_tokens,
        due_at = CASE
            WHEN h.due_at IS NULL AND h.tokens + new_tokens >= h.resume_at_tokens AND (
                h.tokens + new_tokens - h.hidden_tokens + h.summary_tokens >= due_tokens
                OR h.head_seq + new_messages - h.hidden_messages > due_messages
            ) THEN begun_at
            ELSE h.due_at
        END,
        named_tools = h.named_tools || CASE
            WHEN append.named_tools <@ h.named_tools THEN '{}' ELSE append.named_tools
        END,
        newest_at = greatest(h.newest_at, append.newest_at),
        oldest_at = least(h.oldest_at, oldest_sent, greatest(received_at, h.newest_at)),
        open_calls = CASE WHEN cardinality(closed_calls) = 0 THEN h.open_calls ELSE ARRAY(
            SELECT o.call FROM unnest(h.open_calls) AS o (call) WHERE o.call <> ALL (closed_calls)
        ) END || opened_calls,
        open_seqs = CASE WHEN cardinality(closed_calls) = 0 THEN h.open_seqs ELSE ARRAY(
            SELECT o.seq FROM unnest(h.open_calls, h.open_seqs) AS o (call, seq)
            WHERE o.call <> ALL (closed_calls)
        ) END || ARRAY(SELECT h.head_seq + 1 + o.at FROM unnest(opened_indices) AS o (at)),
        group_seq = coalesce(h.head_seq + 1 + group_index, h.group_seq),
        provider_calls = coalesce(running_calls, h.provider_calls),
        is_answering = append.is_answering,
        unindexed_at = coalesce(h.unindexed_at, begun_at)
    WHERE new.conversation_id = append.conversation_id
    RETURNING new.* INTO stored;
    INSERT INTO messages (
        conversation_id, seq, turn, total_tokens, at, late_at,
        message_id, role, format, tokens, reasoning_tokens, call_ids, call_names, needs_body, joins,
        body, chat_item, output, timestamp
    )
    SELECT conversation_id, h.head_seq + m.seq, h.turns + m.turn, h.tokens + m.total_tokens,
        greatest(m.at, h.newest_at),
        CASE WHEN m.late_at < greatest(m.at, h.newest_at) THEN m.late_at END,
        m.message_id, m.role, format, m.tokens, m.reasoning_tokens, m.call_ids, m.call_names,
        m.needs_body, m.joins, m.body, m.chat_item, m.output, m.timestamp
    FROM json_populate_recordset(CAST(NULL AS messages), rows) AS m;
    RETURN NEXT stored;
END $$

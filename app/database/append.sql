-- Appends a batch to the log of a conversation, all of it or nothing [log.one-statement].
--
-- 1. `batch` has what the fields of `b` name, `rows` the messages by the columns of their table.
--    Their `seq`, `turn` and `total_tokens` count from the batch; their `at` is the newest time up
--    to them, and their `late_at` the timestamp that they have.
-- 2. The lock of the head orders concurrent writers. Nothing is stored, and nothing returned, unless
--    the log and the settings are still those for which the batch was prepared. The caller finds
--    the reason.
-- 3. It returns the head after the batch, and the calibration of the conversation's model.
CREATE FUNCTION append(key UUID, tenant TEXT, batch JSONB, rows JSON)
RETURNS TABLE (head heads, calibration calibrations) LANGUAGE plpgsql AS $$
DECLARE
    b RECORD;
    h heads;
    received TIMESTAMPTZ;
BEGIN
    SELECT * INTO b FROM jsonb_to_record(batch) AS b (
        counter TEXT, model TEXT, expected_seq BIGINT, client_ids TEXT[],
        settings_at TIMESTAMPTZ, agent_at TIMESTAMPTZ, model_at TIMESTAMPTZ,
        due_tokens BIGINT, due_messages BIGINT,
        messages BIGINT, turns BIGINT, tokens BIGINT, mentions TEXT[],
        window_seconds BIGINT, window_start TIMESTAMPTZ,
        required TEXT[], closed TEXT[], opened TEXT[], opened_at BIGINT[], start BIGINT,
        provider TEXT[], is_answering BOOLEAN, begins_answer BOOLEAN, is_known BOOLEAN,
        max_open_calls BIGINT,
        now TIMESTAMPTZ, newest_at TIMESTAMPTZ, oldest_sent TIMESTAMPTZ
    );
    SELECT * INTO h FROM heads WHERE conversation_id = key FOR NO KEY UPDATE;
    IF NOT FOUND OR h.counter <> b.counter OR h.head_seq <> b.expected_seq
        OR NOT h.open_calls @> b.required
    THEN
        RETURN;
    END IF;
    -- Nothing joins a call group that is too old by now: its window has to be moved before.
    IF NOT b.is_known AND cardinality(b.required) > 0 AND (
        h.window_seconds IS DISTINCT FROM b.window_seconds
        OR h.oldest_at <= greatest(h.cleared_at, b.window_start)
    ) THEN
        RETURN;
    END IF;
    -- The state that the shape of a batch expects that was made without the log: see `BatchShape`.
    IF NOT b.is_known AND (
        cardinality(h.open_calls) > b.max_open_calls
        OR b.begins_answer AND cardinality(h.provider_calls) > 0
        OR EXISTS (
            SELECT FROM unnest(h.open_calls, h.open_seqs) AS o (call, seq)
            WHERE CASE WHEN o.call = ANY (b.required) THEN o.seq < h.group_seq
                ELSE b.begins_answer AND o.seq >= h.group_seq END
        )
    ) THEN
        RETURN;
    END IF;
    SELECT cal.* INTO calibration
    FROM conversations c
    LEFT JOIN agents a ON a.tenant_id = c.tenant_id AND a.agent_id = c.agent_id
    LEFT JOIN models m ON m.tenant_id = c.tenant_id AND m.model = b.model
    LEFT JOIN calibrations cal ON cal.tenant_id = c.tenant_id AND cal.model = b.model
        AND cal.counter = h.counter
    WHERE c.conversation_id = key AND c.tenant_id = tenant
        AND (c.expires_at IS NULL OR c.expires_at > now())
        AND c.updated_at = b.settings_at
        AND a.updated_at IS NOT DISTINCT FROM b.agent_at
        AND m.updated_at IS NOT DISTINCT FROM b.model_at;
    IF NOT FOUND OR cardinality(b.client_ids) > 0 AND EXISTS (
        SELECT FROM messages
        WHERE conversation_id = key AND message_id = ANY (b.client_ids)
    ) THEN
        RETURN;
    END IF;

    received := greatest(b.now, h.newest_at);
    UPDATE heads SET
        head_seq = h.head_seq + b.messages,
        turns = h.turns + b.turns,
        tokens = h.tokens + b.tokens,
        due_at = CASE
            WHEN h.due_at IS NULL AND h.tokens + b.tokens >= h.resume_at AND (
                h.tokens + b.tokens - h.hidden_tokens + h.summary_tokens >= b.due_tokens
                OR h.head_seq + b.messages - h.hidden_messages > b.due_messages
            ) THEN now()
            ELSE h.due_at
        END,
        mentions = CASE
            WHEN b.mentions <@ h.mentions THEN h.mentions ELSE h.mentions || b.mentions
        END,
        newest_at = greatest(h.newest_at, b.newest_at),
        oldest_at = least(h.oldest_at, b.oldest_sent, received),
        open_calls = ARRAY(
            SELECT o.call FROM unnest(h.open_calls) AS o (call) WHERE o.call <> ALL (b.closed)
        ) || b.opened,
        open_seqs = ARRAY(
            SELECT o.seq FROM unnest(h.open_calls, h.open_seqs) AS o (call, seq)
            WHERE o.call <> ALL (b.closed)
        ) || ARRAY(SELECT h.head_seq + 1 + o.at FROM unnest(b.opened_at) AS o (at)),
        group_seq = coalesce(h.head_seq + 1 + b.start, h.group_seq),
        provider_calls = coalesce(b.provider, h.provider_calls),
        is_answering = b.is_answering,
        unindexed_at = coalesce(h.unindexed_at, now())
    WHERE conversation_id = key
    RETURNING * INTO head;
    INSERT INTO messages (
        conversation_id, seq, turn, total_tokens, at, late_at,
        message_id, role, format, tokens, reasoning_tokens, call_ids, call_names, has_media, joins,
        body, fragment, output, timestamp
    )
    SELECT key, h.head_seq + m.seq, h.turns + m.turn, h.tokens + m.total_tokens,
        greatest(m.at, h.newest_at),
        CASE WHEN m.late_at < greatest(m.at, h.newest_at) THEN m.late_at END,
        m.message_id, m.role, m.format, m.tokens, m.reasoning_tokens, m.call_ids, m.call_names,
        m.has_media, m.joins, m.body, m.fragment, m.output, m.timestamp
    FROM json_populate_recordset(CAST(NULL AS messages), rows) AS m;
    RETURN NEXT;
END $$

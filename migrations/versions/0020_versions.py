"""Versions of a conversation's state and of a tenant's settings.

A process keeps the state of a conversation in memory, and an append checks by the version that it
is still the stored one. Triggers count the versions, so that what the release before writes counts
as well.

1. An append changes `head_seq`, and no version: its statement returns what it changed.
2. Pins and the settings of a conversation are in tables of their own. A change of them counts as
   one of the state.
3. A calibration changes with every usage report, and counts only if builds would use another one.

Revision ID: 0020
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

STATE_CHANGED = """
    CREATE OR REPLACE FUNCTION state_is_changed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        NEW.state_version := OLD.state_version + 1;
        RETURN NEW;
    END;
    $$
"""
PART_CHANGED = """
    CREATE OR REPLACE FUNCTION part_of_state_is_changed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE heads SET state_version = state_version + 1
        WHERE conversation_id = coalesce(NEW.conversation_id, OLD.conversation_id);
        RETURN NULL;
    END;
    $$
"""
SETTINGS_CHANGED = """
    CREATE OR REPLACE FUNCTION settings_are_changed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO settings_versions AS known (tenant_id, version)
        VALUES (coalesce(NEW.tenant_id, OLD.tenant_id), 1)
        ON CONFLICT (tenant_id) DO UPDATE SET version = known.version + 1;
        RETURN NULL;
    END;
    $$
"""
# As `Calibration.rounded` in app/domain/models/calibration.py.
OTHER_CALIBRATION = """
    round(NEW.factor::numeric, 3) <> round(OLD.factor::numeric, 3)
    OR round(NEW.margin::numeric, 3) <> round(OLD.margin::numeric, 3)
    OR least(NEW.reports, 3) <> least(OLD.reports, 3)
"""
TRIGGERS = {
    "heads_changed": """heads BEFORE UPDATE ON heads FOR EACH ROW WHEN (
        NEW.head_seq = OLD.head_seq AND NEW.state_version = OLD.state_version
    ) EXECUTE FUNCTION state_is_changed()""",
    "conversations_changed": """conversations AFTER UPDATE ON conversations FOR EACH ROW
        EXECUTE FUNCTION part_of_state_is_changed()""",
    "pins_changed": """pins AFTER INSERT OR DELETE ON pins FOR EACH ROW
        EXECUTE FUNCTION part_of_state_is_changed()""",
    "agents_changed": """agents AFTER INSERT OR UPDATE OR DELETE ON agents FOR EACH ROW
        EXECUTE FUNCTION settings_are_changed()""",
    "models_changed": """models AFTER INSERT OR UPDATE OR DELETE ON models FOR EACH ROW
        EXECUTE FUNCTION settings_are_changed()""",
    "calibrations_added": """calibrations AFTER INSERT OR DELETE ON calibrations FOR EACH ROW
        EXECUTE FUNCTION settings_are_changed()""",
    "calibrations_changed": f"""calibrations AFTER UPDATE ON calibrations FOR EACH ROW
        WHEN ({OTHER_CALIBRATION}) EXECUTE FUNCTION settings_are_changed()""",
}
"""By name: the table, and the rest of the definition."""


def upgrade() -> None:
    """Add the versions, and the triggers that count them."""
    op.execute("ALTER TABLE heads ADD COLUMN IF NOT EXISTS state_version bigint NOT NULL DEFAULT 0")
    # A default of the current time would rewrite the table, if it were that of the stored rows.
    op.execute(
        """
        ALTER TABLE heads ALTER COLUMN state_version
            SET DEFAULT (EXTRACT(epoch FROM clock_timestamp()) * 1000000)::bigint
        """
    )
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS settings_versions (
            tenant_id text PRIMARY KEY,
            version bigint NOT NULL
        ) WITH (fillfactor = 50)
        """
    )
    for function in (STATE_CHANGED, PART_CHANGED, SETTINGS_CHANGED):
        op.execute(function)
    for name, definition in TRIGGERS.items():
        table, _, rest = definition.partition(" ")
        op.execute(f"DROP TRIGGER IF EXISTS {name} ON {table}")
        op.execute(f"CREATE TRIGGER {name} {rest}")


def downgrade() -> None:
    """Remove them."""
    for name, definition in TRIGGERS.items():
        op.execute(f"DROP TRIGGER {name} ON {definition.partition(' ')[0]}")
    for function in ("settings_are_changed", "part_of_state_is_changed", "state_is_changed"):
        op.execute(f"DROP FUNCTION {function}()")
    op.execute("DROP TABLE settings_versions")
    op.execute("ALTER TABLE heads DROP COLUMN state_version")

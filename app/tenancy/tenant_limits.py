"""The limits of a tenant."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of a tenant; None is no limit."""

    requests_per_minute: int | None = None
    summarizer_calls_per_hour: int | None = None

    def with_defaults(self, defaults: TenantLimits) -> TenantLimits:
        """Return these limits, with the defaults in place of None."""
        own = {name: limit for name, limit in asdict(self).items() if limit is not None}
        return replace(defaults, **own)

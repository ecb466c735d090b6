// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value: number): string => whole.format(value);
export const compact = (value: number): string => (value < 10_000 ? count(value) : short.format(value));
export const percent = (value: number): string => `${value > 0 && value < 0.05 ? "<0.1" : value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
export const bytes = (value: number): string =>
  value < 1024 ? `${value} B` : value < 1_048_576 ? `${(value / 1024).toFixed(1)} KiB` : `${(value / 1_048_576).toFixed(1)} MiB`;

export function usd(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "$0";
  return value < 0.01 ? `$${value.toPrecision(2)}` : `$${value.toFixed(2)}`;
}

/** The reader's locale; some systems name one that browsers themselves do not take. */
function locale(): string {
  try {
    return Intl.getCanonicalLocales(navigator.language)[0] ?? "en";
  } catch {
    return "en";
  }
}

const clock = new Intl.DateTimeFormat(locale(), { dateStyle: "medium", timeStyle: "medium" });
const hours = new Intl.DateTimeFormat(locale(), { timeStyle: "medium" });
const steps: [number, Intl.RelativeTimeFormatUnit][] = [[60, "second"], [3600, "minute"], [86_400, "hour"], [604_800, "day"], [2_629_800, "week"], [31_557_600, "month"], [Infinity, "year"]];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });

/** Return a time in the reader's zone. */
export const time = (iso: string): string => clock.format(new Date(iso));

/** Return a time after another one, without the date where it is of the same day. */
export const timeAfter = (iso: string, before: string | undefined): string =>
  before && new Date(before).toDateString() === new Date(iso).toDateString() ? hours.format(new Date(iso)) : time(iso);

/** Return two times in the reader's zone, with what both have in common once. */
export const range = (from: string, to: string): string => clock.formatRange(new Date(from), new Date(to));

export function ago(iso: string): string {
  const seconds = (new Date(iso).getTime() - Date.now()) / 1000;
  let size = 1;
  for (const [limit, unit] of steps) {
    if (Math.abs(seconds) < limit) return relative.format(Math.round(seconds / size), unit);
    size = limit;
  }
  return time(iso);
}

export const words = (code: string): string => code.replaceAll("_", " ");
export const plural = (value: number, one: string): string => `${count(value)} ${one}${value === 1 ? "" : "s"}`;

/** A reason of the service in words. */
export const reasonText = (code: string): string => words(code.replace(/:.*/, (rest) => ` (${rest.slice(1)})`));

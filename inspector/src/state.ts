// What several views share: the key of this tab, the caller, the place, and when data changed.

import { signal } from "@preact/signals";

const KEY = "context-inspector-key";

/** The API key, kept for this tab only. */
export const apiKey = signal(sessionStorage.getItem(KEY) ?? "");
/** Whether the service asked for a key. */
export const keyWanted = signal(false);
/** Whether the caller may change things; unknown callers see no actions. */
export const mayWrite = signal(false);
/** Grows whenever something may have changed, so that views read again. */
export const changes = signal(0);
/** A line that is shown and read out for a while. */
export const notice = signal<{ text: string; failed: boolean } | null>(null);
export const theme = signal<"light" | "dark" | "auto">(
  (localStorage.getItem("context-inspector-theme") as "light" | "dark" | null) ?? "auto",
);

/** The choice of colours after each. */
export const THEMES = { auto: "light", light: "dark", dark: "auto" } as const;

export function keepKey(key: string): void {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  apiKey.value = key;
  keyWanted.value = false;
  changes.value += 1;
}

export function keepTheme(chosen: "light" | "dark" | "auto"): void {
  if (chosen === "auto") localStorage.removeItem("context-inspector-theme");
  else localStorage.setItem("context-inspector-theme", chosen);
  theme.value = chosen;
  showTheme();
}

export function showTheme(): void {
  if (theme.value === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme.value;
}

let timer = 0;

export function tell(text: string, failed = false): void {
  notice.value = { text, failed };
  clearTimeout(timer);
  timer = window.setTimeout(() => (notice.value = null), failed ? 12_000 : 5_000);
}

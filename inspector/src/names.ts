// What people call a conversation or an agent, and what is wrong with a conversation.

import { useEffect } from "preact/hooks";
import type { ConversationItem, Receipt } from "./api.ts";
import { count, reasonText } from "./format.ts";

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
/** Keys of the metadata that hold a title, the first that is there wins. */
const TITLES = ["title", "name", "subject", "topic"];
const known = new Map<string, string>();

/** The end of an id: UUIDs of one hour begin alike. */
export const shortId = (id: string): string => (UUID.test(id) ? `…${id.slice(-8)}` : id);

const fields = (metadata: unknown): [string, string][] =>
  Object.entries(metadata as Record<string, unknown>).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)]);

/** The title of a conversation, its own id, or else what its metadata begins with. */
export function nameOf({ conversation_id: id, metadata }: { conversation_id: string; metadata: unknown }): string {
  const all = fields(metadata);
  const title = all.find(([key, value]) => TITLES.includes(key.toLowerCase()) && value)?.[1];
  const [first] = all;
  const name = title ?? (!UUID.test(id) ? id : first ? `${first[0]} ${first[1]}` : shortId(id));
  known.set(id, name);
  return name;
}

/** The fields of the metadata that the name does not say. */
export const tagsOf = (item: { conversation_id: string; metadata: unknown }): [string, string][] => {
  const name = nameOf(item);
  return fields(item.metadata).filter(([key, value]) => value !== name && `${key} ${value}` !== name);
};

export const learn = (id: string, name: string): void => void known.set(id, name);

/** The name of what was listed before, or the end of its id. */
export const nameById = (id: string): string => known.get(id) ?? shortId(id);

/** Let the tab's title name the view. */
export function useTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} · Context inspector`;
  }, [title]);
}

export interface Problem {
  kind: "failed" | "overflow" | "degraded" | "blocked";
  text: string;
  hint: string;
  at: string | null;
}

/** What is wrong with a conversation, the worst first. */
export function problemsOf({ usage }: ConversationItem): Problem[] {
  if (!usage) return [];
  const { failed_at: failed, overflowed_at: overflowed, last_compaction: last } = usage;
  return [
    ...(failed ? [{ kind: "failed" as const, text: "compaction failed", hint: "The last automatic compaction failed.", at: failed }] : []),
    ...(usage.pressure === "blocked" ? [{ kind: "blocked" as const, text: "window full", hint: "The next build cannot answer before it compacts.", at: null }] : []),
    ...(overflowed ? [{ kind: "overflow" as const, text: "overflow", hint: "A provider refused the payload as too long, and it was cut.", at: overflowed }] : []),
    ...(last?.degraded.length ? [{ kind: "degraded" as const, text: "degraded", hint: `The last compaction: ${last.degraded.map(reasonText).join(", ")}`, at: last.created_at }] : []),
  ];
}

/** Headings of what can be looked up again, which are no loss. */
const FOUND_AGAIN = new Set(["Files read", "Looked up, as of then", "Stored output", "Values"]);

/** Says that a summary has no room for most of what it should keep; null where it has. */
export function starved(receipt: Receipt): string | null {
  const headings = (receipt.made.length ? receipt.made : receipt.summaries).flatMap((summary) => summary.headings).filter(({ heading }) => !FOUND_AGAIN.has(heading));
  const sum = (name: "found" | "kept" | "superseded"): number => headings.reduce((total, heading) => total + heading[name], 0);
  const wanted = sum("found") - sum("superseded");
  if (receipt.status !== "active" || wanted < 6 || sum("kept") * 3 > wanted) return null;
  return `The summary is starved: its ${count(receipt.summary_tokens)} tokens have room for ${sum("kept")} of ${wanted} statements that cannot be looked up again.`;
}

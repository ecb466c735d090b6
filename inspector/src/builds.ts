// The builds of a conversation that are known, and the payload of each.

import { api, at, type Epoch, good, type Report, type Schemas } from "./api.ts";
import { DEFINITION } from "./content.ts";
import { reasonText, words } from "./format.ts";
import { type Resource, useResource } from "./resource.ts";

export type Fields = Record<string, unknown>;

export interface Build {
  build_id: string;
  /** Builds of one stream extend one another, except where an epoch ends. */
  stream: string;
  label: string;
  seq: number;
  /** The epoch that begins with it. */
  begins: Epoch | null;
}

export const firstBuild = (epoch: Epoch): string => `${epoch.epoch_id}.${epoch.start_seq}`;

/** The build of an epoch up to a message, with the changes of sections and tools behind it. */
export function buildOf(epoch: Epoch, seq: number): string {
  const behind = epoch.changed_after.filter((after) => after === seq).length;
  return `${epoch.epoch_id}.${seq}${behind > 0 ? `-${behind}` : ""}`;
}

/** The first build of each epoch, those of reports, and the newest; newest first. */
function known(epochs: Epoch[], reports: Report[], head: number): Build[] {
  const newest = new Set<string>();
  const isOne = new Set(epochs.map((epoch) => `${epoch.format}:${epoch.model}`)).size === 1;
  return epochs.flatMap((epoch) => {
    const stream = `${epoch.format}:${epoch.model}`;
    const seqs = new Set(epoch.changed_after.filter((after) => after >= epoch.start_seq));
    for (const report of reports) {
      if (report.epoch === epoch.epoch && report.format === epoch.format && report.model === epoch.model && report.through_seq !== null && report.through_seq >= epoch.start_seq) seqs.add(report.through_seq);
    }
    if (!newest.has(stream)) seqs.add(head);
    newest.add(stream);
    const first = firstBuild(epoch);
    const ids = [...[...seqs].sort((a, b) => b - a).map((seq) => [seq, buildOf(epoch, seq)] as const).filter(([, id]) => id !== first), [epoch.start_seq, first] as const];
    return ids.map(([seq, id]) => ({
      build_id: id,
      stream,
      seq,
      begins: id === first ? epoch : null,
      label: `up to #${seq} · epoch ${epoch.epoch}${id === first ? ` begins: ${epoch.cache_break_reason ? reasonText(epoch.cache_break_reason) : "the first"}` : epoch.changed_after.includes(seq) ? " · with a change of sections or tools" : ""}${isOne ? "" : ` · ${words(epoch.format)} · ${epoch.model}`}`,
    }));
  });
}

export function useBuilds(id: string, head: number): Resource<Build[]> {
  return useResource(async () => {
    const params = { ...at(id), query: { limit: 200 } };
    const [epochs, reports] = await Promise.all([
      good(api.GET("/v1/conversations/{conversation_id}/epochs", { params })),
      good(api.GET("/v1/conversations/{conversation_id}/usage/reports", { params })),
    ]);
    return known(epochs.data, reports.data, head);
  }, ["builds", id, head]);
}

export const readBuild = (id: string, as_of: string): Promise<Schemas["EarlierBuild"]> =>
  good(api.GET("/v1/conversations/{conversation_id}/context", { params: { ...at(id), query: { as_of } } }));

export interface PayloadItem {
  item: Fields;
  number: number;
  /** Its newest message; null for tools, system prompt, summaries and notes. */
  seq: number | null;
}

/** Return the parts of a payload in the order in which providers read them: tools, system, history. */
export function itemsOf({ payload, diagnostics: { item_seqs } }: Schemas["EarlierBuild"]): PayloadItem[] {
  const fields = payload as Fields;
  const config = fields["config"] as Fields | undefined;
  const system = fields["system"] ?? fields["instructions"] ?? config?.["system_instruction"];
  const items = (fields["messages"] ?? fields["input"] ?? fields["contents"] ?? []) as Fields[];
  const tools = ((fields["tools"] ?? config?.["tools"] ?? []) as Fields[]).map((tool) => ({ role: DEFINITION, content: tool }));
  const before = [...tools, ...(system === undefined || system === null ? [] : [{ role: "system", content: system }])];
  return [...before, ...items].map((item, index) => ({ item, number: index + 1, seq: item_seqs[index - before.length] ?? null }));
}

export const kindOf = (item: Fields): string => String(item["role"] ?? item["type"] ?? "item");

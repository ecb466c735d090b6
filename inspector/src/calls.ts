// The reported calls of a conversation, each with its build, price and the reason of a cache break.

import { api, at, type Conversation, type Epoch, good, type Receipt, type Report, type Schemas } from "./api.ts";
import { buildOf, firstBuild } from "./builds.ts";
import { type Region, regionsOf } from "./regions.ts";

export interface Call {
  at: number;
  /** The newest message of its payload. */
  seq: number;
  sent: number;
  cached: number;
  /** What the call before in its epoch had sent, so that it can be cached. */
  cacheable: number;
  output: number;
  regions: Region[];
  cost: number | null;
  build: string | null;
  /** What the provider said of the prefix. */
  said: Pick<Report, "cache_miss" | "removed_reasoning">;
  /** The epoch that begins with it. */
  begins: Epoch | null;
  /** Behind which messages it is the first to say, as items, that sections or tools changed. */
  changed: number[];
}

export interface History {
  calls: Call[];
  epochs: Epoch[];
  receipts: Receipt[];
  usage: Schemas["UsageTotalsAnswer"];
  window: number | null;
  /** Whether there are older calls that were not read. */
  more: boolean;
}

const LIMIT = 1000;

/** What a call costs at the prices of now; null where a price is not known. */
function costOf({ token_usage: usage }: Report, model: Schemas["ModelInfo"] | undefined): number | null {
  if (model?.input_price == null || model.output_price == null) return null;
  const [read, write] = [model.cache_read_price ?? model.input_price, model.cache_write_price ?? model.input_price];
  return usage.input_tokens * model.input_price + usage.cache_read_tokens * read + usage.cache_creation_tokens * write + usage.output_tokens * model.output_price;
}

export async function readHistory({ conversation_id: id }: Conversation): Promise<History> {
  const params = { ...at(id), query: { limit: LIMIT } };
  const [epochs, reports, receipts, usage, budget] = await Promise.all([
    good(api.GET("/v1/conversations/{conversation_id}/epochs", { params })),
    good(api.GET("/v1/conversations/{conversation_id}/usage/reports", { params })),
    good(api.GET("/v1/conversations/{conversation_id}/compactions", { params: { ...at(id), query: { limit: 200 } } })),
    good(api.GET("/v1/conversations/{conversation_id}/usage", { params: { ...at(id), query: { limit: 100 } } })),
    good(api.GET("/v1/conversations/{conversation_id}/budget", { params: at(id) })),
  ]);
  const names = [...new Set(reports.data.map((report) => report.model))];
  const models = new Map(await Promise.all(names.map(async (model) => [model, await good(api.GET("/v1/models/{model}", { params: { path: { model } } })).catch(() => undefined)] as const)));
  const streamOf = (each: { format: string; model: string; epoch: number | null }): string => `${each.format}:${each.model}:${each.epoch}`;
  const byStream = new Map(epochs.data.map((epoch) => [streamOf(epoch), epoch]));
  const last = new Map<string, { sent: number; told: number }>();
  const calls = reports.data.toReversed().map((report): Call => {
    const { input_tokens, cache_creation_tokens, cache_read_tokens: cached, output_tokens: output } = report.token_usage;
    const [sent, stream] = [input_tokens + cache_creation_tokens + cached, streamOf(report)];
    const epoch = byStream.get(stream);
    const before = last.get(stream);
    const isFirst = before === undefined && report.through_seq === epoch?.start_seq;
    const told = epoch && !isFirst ? epoch.changed_after.filter((after) => after >= epoch.start_seq && after <= report.through_seq) : [];
    last.set(stream, { sent, told: told.length });
    return {
      at: Date.parse(report.created_at ?? ""), seq: report.through_seq, sent, cached, output, cacheable: Math.min(before?.sent ?? 0, sent),
      regions: report.regions ? regionsOf(report.regions) : [{ name: "Not divided", kind: "other", tokens: report.estimated_tokens ?? sent }],
      cost: costOf(report, models.get(report.model)),
      build: epoch && report.through_seq >= epoch.start_seq ? (isFirst ? firstBuild(epoch) : buildOf(epoch, report.through_seq)) : null,
      said: report,
      begins: epoch && before === undefined ? epoch : null,
      changed: told.slice(before?.told ?? 0),
    };
  });
  // Epochs without a reported call are rows as well.
  const begun = new Set(calls.map((call) => call.begins?.epoch_id));
  const silent = epochs.data.filter((epoch) => !begun.has(epoch.epoch_id));
  return { calls, epochs: silent, receipts: receipts.data, usage, window: budget.budget?.effective_window ?? null, more: reports.next_cursor !== null };
}


// The service's public API, typed by its own description.

import createClient from "openapi-fetch";
import { apiKey, keyWanted } from "./state.ts";
import type { components, paths } from "./schema.ts";

export type Schemas = components["schemas"];
export type Conversation = Schemas["ShownConversation"];
export type ConversationItem = Schemas["ListedConversation"];
export type Agent = Schemas["AgentItem"];
export type Message = Schemas["ShownMessage"] & Record<string, unknown>;
export type Receipt = Schemas["ShownReceipt"];
export type Preview = Schemas["DryRunContext"];
export type ShownMessage = Schemas["DryRunMessage"];
export type Reading = Schemas["Reading"];
export type Format = Schemas["FormatName"];
export type Snapshot = Schemas["Snapshot"];
export type Epoch = Schemas["EpochItem"];
export type Report = Schemas["ReportItem"];
export type Problem = Schemas["ProblemAnswer"];
export type Strategy = Schemas["Strategy"];
export type CompactResult = Schemas["CompactResult"];

export const FORMATS: Format[] = ["openai_chat", "openai_responses", "anthropic", "gemini", "gemini_interactions"];

/** The address of the service, with the prefix of a proxy and without a slash at the end. */
export const BASE = new URL(".", location.href.split("#")[0]).href.replace(/\/$/, "");

export const api = createClient<paths>({ baseUrl: BASE });

api.use({
  onRequest({ request }) {
    if (apiKey.value) request.headers.set("Authorization", `Bearer ${apiKey.value}`);
    return request;
  },
  onResponse({ response }) {
    if (response.status === 401) keyWanted.value = true;
    return response;
  },
});

/** The service refused a request, or could not be reached. */
export class Refused extends Error {
  readonly status: number;
  readonly problem: Problem | undefined;

  constructor(status: number, problem?: Problem) {
    super(problem?.detail ?? (status === 0 ? "The service does not answer." : `The service answered ${status}.`));
    this.status = status;
    this.problem = problem;
  }
}

type Answer<Data> = { data?: Data; error?: unknown; response: Response };

/** Return the data of an answer; throws Refused. */
export async function good<Data>(asked: Promise<Answer<Data>>): Promise<Data> {
  let answer: Answer<Data>;
  try {
    answer = await asked;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Refused(0);
  }
  if (answer.response.ok) return answer.data as Data;
  const problem = answer.error as Problem | undefined;
  throw new Refused(answer.response.status, problem?.detail ? problem : undefined);
}

/** The path parameters of a conversation. */
export const at = (conversation_id: string) => ({ path: { conversation_id } });

const waiting: (() => void)[] = [];
let running = 0;

/** Run a task while few others run, so that a long list does not take all connections. */
export async function inTurn<Data>(task: () => Promise<Data>): Promise<Data> {
  if (running >= 4) await new Promise<void>((resolve) => waiting.push(resolve));
  running += 1;
  try {
    return await task();
  } finally {
    running -= 1;
    waiting.shift()?.();
  }
}

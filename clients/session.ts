// A whole session with openapi-fetch over the generated types of `schema.ts`.
// It asks the service at CONTEXT_URL, with the key in CONTEXT_API_KEY where there is one.

import createClient, { type Client } from "openapi-fetch";
import type { components, paths } from "./schema.ts";

type Schemas = components["schemas"];
type Service = Client<paths>;

const NOBODY = "00000000-0000-0000-0000-000000000000";
const QUESTION = { role: "user", content: "What is the weather in Bergen?" };
const CALL = {
  role: "assistant",
  content: null,
  tool_calls: [
    {
      id: "call_1",
      type: "function",
      function: { name: "get_weather", arguments: '{"city": "Bergen"}' },
    },
  ],
};
const RESULT = { role: "tool", tool_call_id: "call_1", content: "Rain, 8 degrees." };
const TOOL = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Return the weather of a city.",
    parameters: { type: "object", properties: { city: { type: "string" } } },
  },
};

/** The service answered with a problem. */
class Refused extends Error {
  readonly problem: Schemas["ProblemAnswer"];

  constructor(problem: Schemas["ProblemAnswer"]) {
    super(`${problem.status} ${problem.code}: ${problem.detail}`);
    this.problem = problem;
  }
}

/** Return the data of an answer; throws Refused for a problem. */
function good<Data>(answer: { data?: Data; error?: Schemas["ProblemAnswer"] }): Data {
  if (answer.error !== undefined) throw new Refused(answer.error);
  return answer.data as Data;
}

/** Print a line of JSON. */
function tell(...words: unknown[]): void {
  console.log(JSON.stringify(words));
}

function connected(url: string, key: string | undefined): Service {
  return createClient<paths>({
    baseUrl: url,
    ...(key === undefined ? {} : { headers: { Authorization: `Bearer ${key}` } }),
  });
}

/** Append messages and return the new head of the log. */
async function append(
  service: Service,
  conversation_id: string,
  ...messages: Schemas["MessageObject"][]
): Promise<number> {
  const appended = good(
    await service.POST("/v1/conversations/{conversation_id}/messages", {
      params: { path: { conversation_id } },
      body: { messages },
    }),
  );
  return appended.head_seq;
}

/** Return the payload for the next call. */
async function build(
  service: Service,
  conversation_id: string,
  body: Schemas["ContextRequest"],
): Promise<Schemas["BuiltContext"]> {
  return good(
    await service.POST("/v1/conversations/{conversation_id}/context", {
      params: { path: { conversation_id } },
      body,
    }),
  );
}

/** Return all messages of the log, read in pages of two. */
async function transcript(
  service: Service,
  conversation_id: string,
): Promise<Schemas["ShownMessage"][]> {
  const messages: Schemas["ShownMessage"][] = [];
  let cursor: string | null = null;
  do {
    const page: Schemas["MessagePage"] = good(
      await service.GET("/v1/conversations/{conversation_id}/messages", {
        params: { path: { conversation_id }, query: { limit: 2, cursor } },
      }),
    );
    messages.push(...page.data);
    cursor = page.next_cursor;
  } while (cursor !== null);
  return messages;
}

/** Return what happened so far; a reader that follows takes the body as a stream. */
async function events(
  service: Service,
  conversation_id: string,
): Promise<Schemas["StreamedEvent"][]> {
  const text = good(
    await service.GET("/v1/conversations/{conversation_id}/events", {
      params: { path: { conversation_id }, query: { last_event_id: "0.0", follow: false } },
      parseAs: "text",
    }),
  );
  return eventsIn(text);
}

/** Return the events of a stream. */
function eventsIn(text: string): Schemas["StreamedEvent"][] {
  return text
    .split(/\r?\n/)
    .filter((line) => line.startsWith("data:"))
    .map((line) => JSON.parse(line.slice("data:".length)) as Schemas["StreamedEvent"]);
}

function items(payload: Schemas["PayloadObject"]): Schemas["PayloadItem"][] {
  return payload["messages"] as Schemas["PayloadItem"][];
}

/** Begin a conversation, build it in two formats, and go on with a delta. */
async function talk(service: Service): Promise<string> {
  const agent = good(
    await service.POST("/v1/agents", {
      body: {
        name: "Weather bot",
        model: "gpt-4o",
        policy: { budget: { max_output_tokens: 1024 } },
        sections: [{ name: "base", content: "You know the weather." }],
        tools: [TOOL],
      },
    }),
  );
  const { conversation_id } = good(
    await service.POST("/v1/conversations", {
      body: { agent_id: agent.agent_id, metadata: { city: "Bergen" } },
    }),
  );
  tell("head", await append(service, conversation_id, QUESTION, CALL, RESULT));

  const chat = await build(service, conversation_id, {});
  tell("openai_chat", items(chat.payload).map((item) => item["role"]), chat.pressure);
  const claude = { format: "anthropic", model: "claude-3-5-sonnet" } as const;
  const other = await build(service, conversation_id, claude);
  tell("anthropic", items(other.payload).map((item) => item["role"]), other.diagnostics.budget.context_window);

  const delta = await build(service, conversation_id, {
    known: { build_id: chat.build_id },
    append: { messages: [{ role: "assistant", content: "It rains, 8 degrees." }] },
  });
  tell("delta", delta.delta, delta.base_items, items(delta.payload));

  const counted = good(
    await service.POST("/v1/tokens/count", { body: { text: "It rains.", model: "gpt-4o" } }),
  );
  tell("tokens", counted.token_count, counted.counter);

  const usage = { prompt_tokens: 90, completion_tokens: 10 };
  const path = { conversation_id };
  good(
    await service.POST("/v1/conversations/{conversation_id}/usage", {
      params: { path },
      body: { usage, build_id: chat.build_id },
    }),
  );
  const bill = good(
    await service.GET("/v1/conversations/{conversation_id}/usage", {
      params: { path },
    }),
  );
  tell("usage", bill.data.map((row) => [row.model, row.reported.total_tokens]));
  return conversation_id;
}

/** Compact a longer conversation, and save its window. */
async function reduce(service: Service, conversation_id: string): Promise<void> {
  const path = { conversation_id };
  for (let turn = 0; turn < 12; turn += 1) {
    const words = `Day ${turn}: ` + "rain, wind and some sun over the harbour. ".repeat(20);
    await append(
      service,
      conversation_id,
      { role: "user", content: words },
      { role: "assistant", content: "Noted." },
    );
  }
  const result = good(
    await service.POST("/v1/conversations/{conversation_id}/compact", {
      params: { path },
      body: {},
    }),
  );
  if (!("compacted" in result)) throw new Error("a job comes with wait=false only");
  const receipts = good(
    await service.GET("/v1/conversations/{conversation_id}/compactions", { params: { path } }),
  ).data;
  tell("compacted", result.compacted, receipts.map((receipt) => receipt.status));
  const states = (await transcript(service, conversation_id)).map((item) => item.visibility.state);
  tell("shown", [...new Set(states)].sort());

  const saved = good(
    await service.POST("/v1/conversations/{conversation_id}/snapshots", {
      params: { path },
      body: { description: "After the rain" },
    }),
  );
  const snapshots = good(
    await service.GET("/v1/snapshots", { params: { query: path } }),
  ).data;
  tell("snapshots", snapshots.map((snapshot) => snapshot.snapshot_id === saved.snapshot_id));

  const listed = good(
    await service.GET("/v1/conversations", {
      params: { query: { metadata: { city: "Bergen" }, limit: 1 } },
    }),
  ).data;
  const own = good(
    await service.GET("/v1/conversations/{conversation_id}/messages", {
      params: { path, query: { query: "weather bergen" } },
    }),
  ).data;
  const hits = good(
    await service.GET("/v1/search", { params: { query: { query: "weather bergen", limit: 100 } } }),
  ).data;
  tell("listed", listed.map((item) => item.conversation_id === conversation_id));
  tell("found", own.some((message) => message.seq === 1), hits.length <= 100);
}

/** Upload an output, read a line of it, and see what happened. */
async function store(service: Service, conversation_id: string): Promise<void> {
  const output = new TextEncoder().encode("PASS test_one\nFAIL test_two\n");
  const blob = good(
    await service.POST("/v1/conversations/{conversation_id}/blobs", {
      params: { path: { conversation_id }, query: { tool_name: "shell_exec" } },
      headers: { "Content-Type": "text/plain" },
      // The types have a string for raw bytes; the serializer sends what it is given.
      body: output as unknown as string,
      bodySerializer: (body) => body,
    }),
  );
  const lines = good(
    await service.GET("/v1/conversations/{conversation_id}/blobs/{ref_id}/lines", {
      params: { path: { conversation_id, ref_id: blob.id }, query: { offset: 1, limit: 1 } },
    }),
  );
  tell("line", lines.text.trim().split("\t"));
  const kinds = (await events(service, conversation_id)).map((event) => event.type);
  tell("events", [...new Set(kinds)].sort());
}

/** Redact a message, copy the conversation to an id of our own, and let the copy expire. */
async function move(service: Service, conversation_id: string): Promise<void> {
  const message_id = (await transcript(service, conversation_id))[2]?.id ?? "";
  const message = { path: { conversation_id, message_id } };
  good(
    await service.POST("/v1/conversations/{conversation_id}/messages/{message_id}/redact", {
      params: message,
      body: { reason: "The user asked for it" },
    }),
  );
  const redacted = good(
    await service.GET("/v1/conversations/{conversation_id}/messages/{message_id}", {
      params: message,
    }),
  );
  tell("redacted", redacted.content);

  const own_id = `moved: ${conversation_id}`;
  const exported = good(
    await service.GET("/v1/conversations/{conversation_id}/export", {
      params: { path: { conversation_id } },
      parseAs: "text",
    }),
  );
  const copy = good(
    await service.POST("/v1/conversations/import", {
      params: { query: { conversation_id: own_id } },
      headers: { "Content-Type": "application/x-ndjson" },
      body: exported,
      bodySerializer: (body) => body,
    }),
  );
  tell("imported", copy.conversation_id === own_id, copy.head_seq);
  const changed = good(
    await service.PATCH("/v1/conversations/{conversation_id}", {
      params: { path: { conversation_id: own_id } },
      body: { expires_at: "2199-01-05T00:00:00Z" },
    }),
  );
  tell("expires", changed.expires_at !== null);
}

/** Ask for what is not there, and for what cannot be. */
async function fail(service: Service): Promise<void> {
  const answers = [
    await service.GET("/v1/conversations/{conversation_id}", {
      params: { path: { conversation_id: NOBODY } },
    }),
    await service.POST("/v1/agents", { body: { name: "" } }),
  ];
  for (const { error } of answers) {
    if (error === undefined) throw new Error("this should have been refused");
    tell("problem", error.status, error.code, error.errors.map((place) => place.pointer));
  }
}

const url = process.env["CONTEXT_URL"];
if (url === undefined) throw new Error("CONTEXT_URL is not set");
const service = connected(url, process.env["CONTEXT_API_KEY"]);
const conversation_id = await talk(service);
await reduce(service, conversation_id);
await store(service, conversation_id);
await move(service, conversation_id);
await fail(service);

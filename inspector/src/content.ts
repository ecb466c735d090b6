// The parts of a message, whatever format it was sent in.

export interface Part {
  kind: "text" | "call" | "result" | "reasoning" | "media" | "definition" | "removal" | "other";
  text: string;
  name?: string;
  /** What a call and its result have in common. */
  id?: string;
}

/** The role of tool definitions among the items of a payload. */
export const DEFINITION = "tool definition";

type Json = unknown;
type Fields = Record<string, Json>;

const isFields = (value: Json): value is Fields => typeof value === "object" && value !== null && !Array.isArray(value);
const pretty = (value: Json): string => {
  if (typeof value !== "string") return value === undefined ? "" : JSON.stringify(value, null, 2);
  try {
    const parsed: Json = JSON.parse(value);
    return typeof parsed === "object" && parsed !== null ? JSON.stringify(parsed, null, 2) : value;
  } catch {
    return value;
  }
};
const string = (value: Json): string => (typeof value === "string" ? value : pretty(value));

function textOf(value: Json): string {
  if (Array.isArray(value)) return value.map(textOf).filter(Boolean).join("\n");
  if (isFields(value)) return string(value["text"] ?? value["content"] ?? value);
  return string(value ?? "");
}

function block(item: Json): Part[] {
  if (typeof item === "string") return item ? [{ kind: "text", text: item }] : [];
  if (!isFields(item)) return [];
  const type = item["type"];
  const name = typeof item["name"] === "string" ? item["name"] : undefined;
  if (isFields(item["functionCall"])) return [{ kind: "call", name: string(item["functionCall"]["name"]), text: pretty(item["functionCall"]["args"]) }];
  if (isFields(item["functionResponse"])) return [{ kind: "result", name: string(item["functionResponse"]["name"]), text: pretty(item["functionResponse"]["response"]) }];
  switch (type) {
    case "tool_use":
    case "server_tool_use":
      return [{ kind: "call", id: string(item["id"] ?? ""), name: name ?? "tool", text: pretty(item["input"]) }];
    case "function_call":
    case "custom_tool_call":
      return [{ kind: "call", id: string(item["call_id"] ?? ""), name: name ?? "tool", text: pretty(item["arguments"] ?? item["input"]) }];
    case "tool_result":
      return [{ kind: "result", id: string(item["tool_use_id"] ?? ""), text: textOf(item["content"]) }];
    case "function_call_output":
    case "custom_tool_call_output":
      return [{ kind: "result", id: string(item["call_id"] ?? ""), text: textOf(item["output"]) }];
    case "tool_addition":
    case "tool_removal":
      return isFields(item["tool"]) ? definitionsOf(isFields(item["tool"]["definition"]) ? item["tool"]["definition"] : item["tool"]).map((part) => ({ ...part, kind: type === "tool_removal" ? ("removal" as const) : part.kind })) : [];
    case "additional_tools":
      return Array.isArray(item["tools"]) ? item["tools"].filter(isFields).flatMap(definitionsOf) : [];
    case "thinking":
      return [{ kind: "reasoning", text: string(item["thinking"]) }];
    case "redacted_thinking":
      return [{ kind: "reasoning", text: "(encrypted)" }];
    case "reasoning":
      return [{ kind: "reasoning", text: textOf(item["summary"] ?? item["content"] ?? "(encrypted)") }];
  }
  if (item["thought"] === true) return [{ kind: "reasoning", text: textOf(item["text"]) }];
  if (typeof item["text"] === "string") return item["text"] ? [{ kind: "text", text: item["text"] }] : [];
  if (typeof type === "string" && /image|file|audio|document|video/.test(type)) return [{ kind: "media", text: type }];
  if (isFields(item["inlineData"]) || isFields(item["fileData"])) return [{ kind: "media", text: "media" }];
  return [{ kind: "other", text: pretty(item) }];
}

const known = new WeakMap<Fields, Part[]>();

/** Return the parts of a stored message or of an item of a payload, in order. */
export function partsOf(message: Fields): Part[] {
  const parts = known.get(message) ?? read(message);
  known.set(message, parts);
  return parts;
}

/** Return the names of called tools by the id of the call, which results do not repeat. */
export function toolNames(messages: Iterable<Fields | undefined>): Map<string, string> {
  const names = new Map<string, string>();
  for (const message of messages) {
    for (const part of message ? partsOf(message) : []) if (part.kind === "call" && part.id && part.name) names.set(part.id, part.name);
  }
  return names;
}

/** Return what a tool definition of any format says of the tools in it. */
export function definitionsOf(tool: Fields): Part[] {
  const inner = tool["functionDeclarations"] ?? tool["function_declarations"] ?? tool["function"] ?? tool;
  return (Array.isArray(inner) ? inner : [inner]).filter(isFields).map((each) => ({ kind: "definition", name: string(each["name"] ?? each["type"] ?? "tool"), text: pretty(each) }));
}

function read(message: Fields): Part[] {
  if (message["role"] === DEFINITION && isFields(message["content"])) return definitionsOf(message["content"]);
  const parts: Part[] = [];
  for (const key of ["reasoning_content", "reasoning"]) {
    if (typeof message[key] === "string" && message[key]) parts.push({ kind: "reasoning", text: message[key] });
  }
  const isResult = message["role"] === "tool";
  const content = message["content"] ?? message["parts"];
  if (isResult && (typeof content === "string" || Array.isArray(content)) && !hasBlocks(content)) {
    const name = typeof message["name"] === "string" ? message["name"] : undefined;
    parts.push({ kind: "result", text: textOf(content), id: string(message["tool_call_id"] ?? ""), ...(name ? { name } : {}) });
  } else if (Array.isArray(content)) parts.push(...content.flatMap(block));
  else if (content !== undefined && content !== null) parts.push(...block(content));
  else if (typeof message["type"] === "string" && message["type"] !== "message") parts.push(...block(message));
  for (const call of Array.isArray(message["tool_calls"]) ? message["tool_calls"] : []) {
    const called: Json = isFields(call) ? (call["function"] ?? call["custom"]) : undefined;
    if (isFields(called)) parts.push({ kind: "call", id: string((call as Fields)["id"] ?? ""), name: string(called["name"]), text: pretty(called["arguments"] ?? called["input"]) });
  }
  return parts;
}

const hasBlocks = (content: Json): boolean => Array.isArray(content) && content.some((item) => isFields(item) && (item["type"] === "tool_result" || "functionResponse" in item));

/** Return a message in one line of at most `length` characters. */
export function lineOf(message: Fields, length = 240): string {
  const words = partsOf(message).map((part) =>
    part.kind === "definition" ? `${part.name}: ${part.text}` : part.kind === "call" ? `→ ${part.name ?? "tool"}(${part.text})` : part.kind === "media" ? `[${part.text}]` : part.text,
  );
  const line = words.join(" · ").slice(0, length * 2).replace(/\s+/g, " ").trim();
  return line.length > length ? `${line.slice(0, length)}…` : line || "(empty)";
}

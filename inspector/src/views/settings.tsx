// What goes into each payload beside the messages: sections, tools, and the policy with its sources.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { api, type Conversation, type Epoch, good, inTurn, type Schemas } from "../api.ts";
import { definitionsOf } from "../content.ts";
import { count, plural, words } from "../format.ts";
import { link, place, toConversation } from "../router.ts";
import { useResource } from "../resource.ts";
import { Badge, Failed, Loading } from "../ui.tsx";

type Shown = Pick<Schemas["ShownAgent"], "policy" | "policy_overrides" | "sections" | "tools">;
type Source = "conversation" | "agent" | "default";

/** Something that was set, and where. */
interface Item {
  name: string;
  from: Source;
  kind: string;
  text: string;
  counted: { text: string } | { tools: Schemas["ToolObject"][] };
}

const sectionItem = (from: Source) => (section: Schemas["PromptSection"]): Item => ({ name: section.name, from, kind: section.kind, text: section.content, counted: { text: section.content } });
const toolItems = (from: Source) => (tool: Schemas["ToolObject"]): Item[] => {
  const parts = definitionsOf(tool as Record<string, unknown>);
  return [{ name: parts.map((part) => part.name).join(", "), from, kind: "tool", text: parts.map((part) => part.text).join("\n"), counted: { tools: [tool] } }];
};

/** The items of both levels; those of the conversation replace the agent's by name. */
function merged(own: Item[], agent: Item[]): Item[] {
  const names = new Set(own.map((item) => item.name));
  return [...agent.filter((item) => !names.has(item.name)), ...own];
}

/** A part that reads nothing until it is opened; a link with its name in `open` opens it. */
function Part({ name, title, children }: { name: string; title: string; children: () => ComponentChildren }): JSX.Element {
  const wanted = place.value.query.get("open") === name;
  const [open, setOpen] = useState(wanted);
  const frame = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    if (!wanted) return;
    setOpen(true);
    frame.current?.scrollIntoView({ block: "nearest" });
  }, [wanted]);
  return (
    <details class="set" ref={frame} open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{title}</summary>
      {open && children()}
    </details>
  );
}

export function ConversationSettings({ conversation, agent, epoch }: { conversation: Conversation; agent: Shown | null | undefined; epoch: Epoch | undefined }): JSX.Element {
  const { agent_id: agentId, conversation_id: id } = conversation;
  const changed = [...new Set(epoch?.changed_after)];
  return (
    <Parts own={conversation} above="conversation" theirs={agent} href={agentId ? link(["agents"], { open: agentId }) : undefined}>
      {changed.length > 0 && <p class="hint">Sections or tools changed inside epoch {epoch?.epoch}, behind {changed.map((seq, index) => <span key={seq}>{index > 0 && ", "}<a href={toConversation(id, "messages", { seq: String(seq) })}>message {seq}</a></span>)}: an item there says so, and the prefix stays as it was. The lists here are those of now. <a href={toConversation(id, "time")}>See the calls</a></p>}
    </Parts>
  );
}

export function AgentSettings({ id }: { id: string }): JSX.Element {
  const agent = useResource(() => good(api.GET("/v1/agents/{agent_id}", { params: { path: { agent_id: id } } })), ["agent", id]);
  if (agent.error) return <Failed error={agent.error} />;
  if (!agent.data) return <Loading what="the agent" />;
  return <Parts own={agent.data} above="agent" theirs={null} href={undefined} />;
}

function Parts({ own, above, theirs, href, children }: { own: Shown; above: Source; theirs: Shown | null | undefined; href: string | undefined; children?: ComponentChildren }): JSX.Element {
  const sections = merged(own.sections.map(sectionItem(above)), theirs?.sections.map(sectionItem("agent")) ?? []);
  const tools = merged(own.tools.flatMap(toolItems(above)), theirs?.tools.flatMap(toolItems("agent")) ?? []);
  return (
    <section class="card" aria-label="Settings">
      <div class="title"><h2>Settings</h2>{href && <a href={href}>of the agent</a>}</div>
      {children}
      <Part name="system" title={`System prompt: ${plural(sections.length, "section")}`}>{() => <Items items={sections} />}</Part>
      <Part name="tools" title={`Tools: ${tools.length} of the caller, beside those of the service`}>{() => <Items items={tools} />}</Part>
      <Part name="policy" title="Policy: each value, and where it comes from">{() => <PolicyTable policy={own.policy} layers={[[above, own.policy_overrides], ["agent", theirs?.policy_overrides ?? {}]]} />}</Part>
    </section>
  );
}

function Items({ items }: { items: Item[] }): JSX.Element {
  if (items.length === 0) return <p class="muted">None.</p>;
  return <ul class="plain-list">{items.map((item) => <ItemShown key={`${item.from}.${item.name}`} item={item} />)}</ul>;
}

function ItemShown({ item }: { item: Item }): JSX.Element {
  const tokens = useResource(() => inTurn(() => good(api.POST("/v1/tokens/count", { body: { format: "openai_chat", ...item.counted } }))), ["tokens", item.name, item.text]);
  return (
    <li><details class="part">
      <summary><b>{item.name}</b> <span class="num">{tokens.data ? plural(tokens.data.token_count, "token") : tokens.error ? "" : "…"}</span> <span class="muted">{words(item.kind)} of the {item.from}</span></summary>
      <pre tabIndex={0}>{item.text}</pre>
    </details></li>
  );
}

/** The values of an object by their paths; lists are values. */
function flat(value: unknown, path: string[] = []): [string, unknown][] {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return [[path.join("."), value]];
  return Object.entries(value).flatMap(([name, inner]) => flat(inner, [...path, name]));
}

function PolicyTable({ policy, layers }: { policy: Schemas["Policy"]; layers: [Source, unknown][] }): JSX.Element {
  const set = layers.map(([source, overrides]) => [source, new Set(flat(overrides).map(([path]) => path))] as const);
  const rows = flat(policy).map(([path, value]) => ({ path, value, from: set.find(([, paths]) => paths.has(path))?.[0] ?? ("default" as Source) }));
  const ordered = [...rows.filter(({ from }) => from !== "default"), ...rows.filter(({ from }) => from === "default")];
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Policy"><table class="list">
      <thead><tr><th scope="col">Setting</th><th scope="col">Value</th><th scope="col">From</th></tr></thead>
      <tbody>{ordered.map(({ path, value, from }) => (
        <tr key={path}><th scope="row" class="path">{path}</th><td class="value">{typeof value === "number" ? count(value) : typeof value === "string" ? value : JSON.stringify(value)}</td>
          <td>{from === "default" ? <span class="muted">default</span> : <Badge kind="pin">{from}</Badge>}</td></tr>
      ))}</tbody>
    </table></div>
  );
}


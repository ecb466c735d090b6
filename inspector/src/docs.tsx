// The API reference at `/docs`: operations by tag, each drawn when it is opened.

import "./styles.css";
import { signal } from "@preact/signals";
import { render } from "preact";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Markdown } from "./markdown.tsx";
import { keepTheme, notice, showTheme, theme, THEMES } from "./state.ts";
import { Badge, Copy, curlOf, Logo } from "./ui.tsx";

interface Schema {
  $ref?: string;
  type?: string;
  const?: unknown;
  enum?: unknown[];
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: boolean | Schema;
  description?: string;
  default?: unknown;
  examples?: unknown[];
  minimum?: number;
  maximum?: number;
}
type Content = { schema?: Schema; example?: unknown; examples?: Record<string, { value?: unknown }> };
type Answer = { $ref?: string; description?: string; content?: Record<string, Content> };
interface Operation {
  operationId: string;
  summary: string;
  description?: string;
  tags?: string[];
  parameters?: { name: string; in: string; required?: boolean; description?: string; schema?: Schema }[];
  requestBody?: { content: Record<string, Content> };
  responses: Record<string, Answer>;
}
interface Document {
  info: { title: string; version: string; description: string };
  tags: { name: string; description: string }[];
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, Schema>; responses: Record<string, Answer> };
}
type Listed = { path: string; method: string; operation: Operation };

const document_ = signal<Document | null>(null);
const METHODS = ["get", "post", "put", "patch", "delete"];
const nameOf = (ref: string): string => ref.split("/").at(-1) ?? "";

/** Text whose lines were broken for the source: a paragraph is one line. */
const Prose = ({ text }: { text: string }): JSX.Element => <Markdown text={text.replace(/(\S)\n(?=(?!```)[^\n\s#|*-])/g, "$1 ")} />;

const followed = (schema: Schema): Schema => (schema.$ref ? (document_.value?.components.schemas[nameOf(schema.$ref)] ?? {}) : schema);
const partsOf = (schema: Schema): Schema[] => schema.anyOf ?? schema.oneOf ?? schema.allOf ?? [];

/** The type of a value in a few words. */
function typeOf(schema: Schema): string {
  if (schema.$ref) return nameOf(schema.$ref);
  if (partsOf(schema).length) return partsOf(schema).map(typeOf).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.type === "array") return `${typeOf(schema.items ?? {})}[]`;
  const range = [schema.minimum === undefined ? "" : `≥ ${schema.minimum}`, schema.maximum === undefined ? "" : `≤ ${schema.maximum}`].filter(Boolean).join(", ");
  return `${schema.type ?? "any"}${range && ` (${range})`}`;
}

/** The named schemas in a type that have fields of their own. */
function inner(schema: Schema): [string, Schema][] {
  if (schema.$ref) {
    const found = followed(schema);
    return found.properties ? [[nameOf(schema.$ref), found]] : partsOf(found).length ? inner({ anyOf: partsOf(found) }) : [];
  }
  return [...partsOf(schema), ...(schema.items ? [schema.items] : [])].flatMap(inner);
}

/** A part that is drawn when it is opened. */
function Folded({ title, children, kind = "part", open: first = false, id }: { title: ComponentChildren; children: () => ComponentChildren; kind?: string; open?: boolean; id?: string }): JSX.Element {
  const [open, setOpen] = useState(first);
  const frame = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    if (!first) return;
    setOpen(true);
    frame.current?.scrollIntoView();
  }, [first]);
  return <details class={kind} id={id} ref={frame} open={open} onToggle={(event) => setOpen(event.currentTarget.open)}><summary>{title}</summary>{open && <div class="inside">{children()}</div>}</details>;
}

function Fields({ schema }: { schema: Schema }): JSX.Element {
  return (
    <dl class="fields">{Object.entries(schema.properties ?? {}).map(([name, field]) => (
      <div key={name}>
        <dt><code>{name}</code> <span class="muted">{typeOf(field)}{schema.required?.includes(name) ? " · required" : field.default !== undefined && field.default !== null ? ` · ${JSON.stringify(field.default)}` : ""}</span></dt>
        <dd>{field.description && <Prose text={field.description} />}{inner(field).map(([type, found]) => <Folded key={type} title={<>Fields of <b>{type}</b></>}>{() => <Fields schema={found} />}</Folded>)}</dd>
      </div>
    ))}</dl>
  );
}

const exampleOf = ({ schema = {}, example, examples }: Content): unknown => example ?? Object.values(examples ?? {})[0]?.value ?? inner(schema)[0]?.[1].examples?.[0] ?? schema.examples?.[0];

function Body({ content = {}, isShown }: { content: Record<string, Content> | undefined; isShown?: boolean }): JSX.Element {
  return <>{Object.entries(content).map(([media, each]) => {
    const [schema, shown] = [each.schema ?? {}, exampleOf(each)];
    return (
      <div key={media}>
        <p class="muted">{media} · {typeOf(schema)}</p>
        {inner(schema).map(([type, found]) => <Fields key={type} schema={found} />)}
        {shown !== undefined && !isShown && <Folded title="Example">{() => <pre tabIndex={0}>{typeof shown === "string" ? shown : JSON.stringify(shown, null, 2)}</pre>}</Folded>}
      </div>
    );
  })}</>;
}

/** The request with the examples of its path, its required parameters and its body, ready to be pasted. */
function Request({ path, method, operation }: Listed): JSX.Element {
  const parameters = operation.parameters ?? [];
  const exampleFor = (name: string): string => {
    const schema = parameters.find((each) => each.name === name)?.schema ?? {};
    return encodeURIComponent(String(schema.examples?.[0] ?? followed(schema).enum?.[0] ?? (schema.type === "integer" ? 1 : name.toUpperCase())));
  };
  const query = parameters.filter((each) => each.in === "query" && each.required).map(({ name }) => `${name}=${exampleFor(name)}`).join("&");
  const [[media, content] = []] = Object.entries(operation.requestBody?.content ?? {});
  const isJson = media === "application/json";
  const file = media && !isJson ? ` -H 'Content-Type: ${media}' --data-binary @FILE` : "";
  const command = curlOf(path.replace(/\{(\w+)\}/g, (_, name: string) => exampleFor(name)) + (query && `?${query}`), method.toUpperCase(), isJson && content ? exampleOf(content) : undefined) + file;
  return <section><div class="title"><h3>Try it</h3><span class="hint"><a href={`#${operation.operationId}`}>link</a> <Copy text={command} label="Copy as curl" shown="curl" /></span></div><pre class="request" tabIndex={0}>{command}</pre></section>;
}

const answerOf = (answer: Answer): Answer => (answer.$ref ? (document_.value?.components.responses[nameOf(answer.$ref)] ?? {}) : answer);

function Details({ path, method, operation }: Listed): JSX.Element {
  const answers = Object.entries(operation.responses).map(([status, answer]) => [status, answerOf(answer)] as const);
  const failures = answers.filter(([status]) => status >= "400");
  const parameters = operation.parameters ?? [];
  return (
    <>
      {operation.description && <Prose text={operation.description} />}
      <Request path={path} method={method} operation={operation} />
      {parameters.length > 0 && <section><h3>Parameters</h3><Fields schema={{ properties: Object.fromEntries(parameters.map((each) => [each.name, { ...each.schema, description: each.description ?? "" }])), required: parameters.filter((each) => each.required).map((each) => each.name) }} /></section>}
      {operation.requestBody && <section><h3>Body</h3><Body content={operation.requestBody.content} isShown={"application/json" in operation.requestBody.content} /></section>}
      {answers.filter(([status]) => status < "400").map(([status, answer]) => <section key={status}><h3>Answer {status}</h3>{answer.description && <Prose text={answer.description} />}<Body content={answer.content} /></section>)}
      {failures.length > 0 && <Folded title={`Errors: ${failures.map(([status]) => status).join(", ")}`}>{() => <dl class="fields">{failures.map(([status, answer]) => <div key={status}><dt><b>{status}</b></dt><dd><Prose text={answer.description ?? ""} /></dd></div>)}</dl>}</Folded>}
    </>
  );
}

function Reference({ api }: { api: Document }): JSX.Element {
  const [words, setWords] = useState("");
  const wanted = decodeURIComponent(location.hash.slice(1));
  const all = Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).filter(([method]) => METHODS.includes(method)).map(([method, operation]): Listed => ({ path, method, operation })));
  const sought = words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = all.filter(({ path, method, operation }) => {
    const text = `${method} ${path} ${operation.summary} ${operation.description} ${(operation.parameters ?? []).map((each) => each.name).join(" ")}`.toLowerCase();
    return sought.every((word) => text.includes(word));
  });
  return (
    <section class="page docs">
      <div class="title"><h1>{api.info.title}</h1><span class="muted">version {api.info.version} · <a href="openapi.json">openapi.json</a></span></div>
      <Folded kind="set" title="Rules for all requests">{() => <Prose text={api.info.description} />}</Folded>
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <label class="field"><span>Filter</span><input type="search" value={words} placeholder="path, words, parameter" onInput={(event) => setWords(event.currentTarget.value)} autofocus /></label>
        <p class="hint" role="status">{found.length} of {all.length} operations</p>
      </form>
      {api.tags.map(({ name, description }) => {
        const operations = found.filter(({ operation }) => operation.tags?.includes(name));
        if (operations.length === 0) return null;
        return (
          <section key={name} class="card" aria-label={name}>
            <div class="title"><h2>{name}</h2><div class="muted"><Prose text={description} /></div></div>
            <div>{operations.map(({ path, method, operation }) => (
              <Folded key={operation.operationId} id={operation.operationId} kind="operation" open={wanted === operation.operationId}
                title={<><Badge kind={`method ${method}`}>{method.toUpperCase()}</Badge> <code>{path}</code> <span class="muted">{operation.summary}</span></>}>
                {() => <Details path={path} method={method} operation={operation} />}
              </Folded>
            ))}</div>
          </section>
        );
      })}
    </section>
  );
}

function Page(): JSX.Element {
  return (
    <>
      <header class="top"><a class="brand" href="inspector"><Logo />Context <b>inspector</b></a><span class="grow" />
        <button type="button" class="plain" onClick={() => keepTheme(THEMES[theme.value])}><span aria-hidden="true">◐</span> {theme.value}<span class="sr"> colours, change</span></button></header>
      <main>{document_.value ? <Reference api={document_.value} /> : <p class="loading" role="status">Reading the description…</p>}</main>
      <div class="toasts" role="status">{notice.value && <p class="toast">{notice.value.text}</p>}</div>
    </>
  );
}

showTheme();
const root = document.getElementById("app");
if (root) render(<Page />, root);
fetch("openapi.json").then((answer) => answer.json() as Promise<Document>).then((api) => {
  document_.value = api;
});

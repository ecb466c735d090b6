// Places of the page: `#/c/<id>/<view>?<parameters>`, so that every view has a link.

import { signal } from "@preact/signals";

export type Place = { parts: string[]; query: URLSearchParams };

function read(): Place {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { parts: parts.length ? parts : ["conversations"], query: new URLSearchParams(query) };
}

export const place = signal<Place>(read());
window.addEventListener("hashchange", () => (place.value = read()));

/** Return the link to a place; empty parameters are left out. */
export function link(parts: string[], query: Record<string, string | undefined> = {}): string {
  const kept = Object.entries(query).filter((pair): pair is [string, string] => Boolean(pair[1]));
  const search = new URLSearchParams(kept).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

export const toConversation = (id: string, view = "window", query: Record<string, string | undefined> = {}): string => link(["c", id, view], query);

/** Change parameters of this place without a new entry in the history. */
export function setQuery(changed: Record<string, string | undefined>): void {
  const query = Object.fromEntries(place.value.query);
  history.replaceState(null, "", link(place.value.parts, { ...query, ...changed }));
  place.value = read();
}

export function go(to: string): void {
  location.hash = to.replace(/^#/, "");
}

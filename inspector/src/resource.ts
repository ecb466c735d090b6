// Data of the service in a view: loading, there, or refused; read again when something changed.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { changes } from "./state.ts";
import { Refused } from "./api.ts";

export interface Resource<Data> {
  data: Data | undefined;
  error: Refused | undefined;
  loading: boolean;
  reload: () => void;
}

/** Read data for `keys`. What was there stays shown while the same keys are read again. */
export function useResource<Data>(read: () => Promise<Data>, keys: unknown[]): Resource<Data> {
  const name = JSON.stringify(keys);
  const [state, setState] = useState<{ name: string; data?: Data; error?: Refused }>({ name });
  const [loading, setLoading] = useState(true);
  const [asked, setAsked] = useState(0);
  const latest = useRef(read);
  latest.current = read;
  const changed = changes.value;
  useEffect(() => {
    let gone = false;
    setLoading(true);
    latest.current().then(
      (data) => !gone && setState({ name, data }),
      (error: unknown) => !gone && setState({ name, error: error instanceof Refused ? error : new Refused(0) }),
    ).finally(() => !gone && setLoading(false));
    return () => {
      gone = true;
    };
  }, [name, changed, asked]);
  const current = state.name === name ? state : undefined;
  const reload = useCallback(() => setAsked((before) => before + 1), []);
  return { data: current?.data, error: current?.error, loading: loading || current === undefined, reload };
}

export interface Pages<Item> {
  items: Item[] | undefined;
  error: Refused | undefined;
  more: (() => void) | undefined;
  loading: boolean;
}

interface Page<Item> {
  data: Item[];
  next_cursor: string | null;
}

/** Read a list page by page; it starts again with other keys or when something changed. */
export function usePages<Item>(read: (cursor: string | null) => Promise<Page<Item>>, keys: unknown[]): Pages<Item> {
  const name = JSON.stringify(keys);
  const first = useResource(() => read(null), keys);
  const [further, setFurther] = useState<{ of: unknown; items: Item[]; cursor: string | null }>();
  const [loading, setLoading] = useState(false);
  const [error, setError] = useState<Refused>();
  useEffect(() => setError(undefined), [name]);
  const more = further?.of === first.data ? further : undefined;
  const cursor = more ? more.cursor : (first.data?.next_cursor ?? null);
  const items = first.data && [...first.data.data, ...(more?.items ?? [])];
  const loadMore = (): void => {
    setLoading(true);
    const of = first.data;
    read(cursor).then(
      (page) => setFurther({ of, items: [...(more?.items ?? []), ...page.data], cursor: page.next_cursor }),
      (refused: unknown) => setError(refused instanceof Refused ? refused : new Refused(0)),
    ).finally(() => setLoading(false));
  };
  return { items, error: first.error ?? error, more: cursor !== null && !loading ? loadMore : undefined, loading: first.loading || loading };
}

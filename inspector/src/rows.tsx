// A long list of which only the rows in view are in the page.

import { elementScroll, observeElementOffset, observeElementRect, type VirtualItem, Virtualizer } from "@tanstack/virtual-core";
import type { JSX, RefObject } from "preact";
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";

interface Rows {
  frame: RefObject<HTMLDivElement | null>;
  virtual: Virtualizer<HTMLDivElement, HTMLDivElement>;
  items: VirtualItem[];
}

/** Follow which of `count` rows are in view; the list begins at the row `at`, or at its end. */
export function useRows(count: number, at: number | "end"): Rows {
  const frame = useRef<HTMLDivElement>(null);
  const [, redraw] = useReducer((times: number) => times + 1, 0);
  const options = {
    count, getScrollElement: () => frame.current, estimateSize: () => 96, overscan: 6, onChange: () => redraw(0),
    scrollToFn: elementScroll, observeElementRect, observeElementOffset,
  };
  const [virtual] = useState(() => new Virtualizer<HTMLDivElement, HTMLDivElement>(options));
  virtual.setOptions(options);
  useLayoutEffect(() => virtual._didMount(), []);
  useLayoutEffect(() => virtual._willUpdate());
  useEffect(() => {
    if (at === "end") virtual.scrollToIndex(count - 1, { align: "end" });
    else virtual.scrollToIndex(Math.min(at, count - 1), { align: "start" });
  }, [at]);
  return { frame, virtual, items: virtual.getVirtualItems() };
}

export function RowsInView({ rows: { frame, virtual, items }, label, children }: { rows: Rows; label: string; children: (index: number) => JSX.Element }): JSX.Element {
  return (
    <div class="transcript frame" ref={frame} tabIndex={0} role="region" aria-label={label}>
      <div class="tall" style={{ height: `${virtual.getTotalSize()}px` }}>
        {items.map((item) => (
          <div key={item.index} class="slot" data-index={item.index} ref={(node) => virtual.measureElement(node)} style={{ transform: `translateY(${item.start}px)` }}>
            {children(item.index)}
          </div>
        ))}
      </div>
    </div>
  );
}

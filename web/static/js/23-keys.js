// The palette (Ctrl+K or Command+K) and the keyboard shortcuts. Single-key shortcuts are ignored while the user types or composes text.
(() => {
  "use strict";

  const WAIT_MS = 120, CHORD_MS = 1200, OFF = "rondel-keys-off";
  const palette = document.getElementById("palette");
  const help = document.getElementById("keys");
  if (!palette) return;
  const input = palette.querySelector("input");
  const list = palette.querySelector(".found");
  // Whether the hits in the list belong to an earlier text than the current one.
  let isStale = false;
  let timer = 0, asked = null, chordAt = 0;

  if (/Mac|iP/.test(navigator.platform)) document.querySelector(".jump kbd")?.replaceChildren("⌘ K");

  const hits = () => [...list.querySelectorAll(".hit:not(:disabled)")];

  async function search() {
    clearTimeout(timer);
    asked?.abort();
    asked = new AbortController();
    const text = input.value;
    try {
      const address = `${palette.dataset.href}?q=${encodeURIComponent(text)}`;
      const answer = await fetch(address, { signal: asked.signal, headers: { accept: "text/html", "hx-request": "true" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      list.replaceChildren(...(page.getElementById("found")?.childNodes ?? []));
      isStale = input.value !== text;
      mark(isStale ? null : hits()[0]);
    } catch { /* a newer request, or an unreachable server: the list stays */ }
  }

  function mark(hit) {
    list.querySelector(".on")?.classList.remove("on");
    hit?.classList.add("on");
  }

  function invalidate() {
    isStale = true;
    mark(null);
  }

  // Enter chooses among the hits of the current text, so it waits until they have arrived.
  async function choose() {
    if (isStale) await search();
    if (palette.open && !isStale) list.querySelector(".hit.on:not(:disabled)")?.click();
  }

  function open() {
    if (help.open) help.close();
    palette.showModal();
    input.select();
    invalidate();
    search();
  }

  input.addEventListener("input", () => { invalidate(); clearTimeout(timer); timer = setTimeout(search, WAIT_MS); });
  palette.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const all = hits(), at = all.findIndex((hit) => hit.classList.contains("on"));
    if (step && all.length) {
      event.preventDefault();
      const next = all[(at + step + all.length) % all.length];
      mark(next);
      next.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter" && event.target === input) {
      event.preventDefault();
      choose();
    } else if (event.key === "Escape") {
      // By default, Escape would only empty the search field.
      event.preventDefault();
      palette.close();
    }
  });
  palette.addEventListener("submit", () => palette.close());
  for (const dialog of [palette, help]) dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-open]");
    if (!opener) return;
    event.preventDefault();
    if (opener.dataset.open === "palette") open();
    else help.showModal();
  });

  const isOff = () => { try { return localStorage.getItem(OFF) === "1"; } catch { return false; } };
  const toggle = help.querySelector("input[type=checkbox]");
  toggle.checked = !isOff();
  toggle.addEventListener("change", () => { try { localStorage.setItem(OFF, toggle.checked ? "0" : "1"); } catch { /* not kept */ } });

  // The element of a row that gets the focus. Rows without such an element are skipped.
  const targetOf = (row) => row.querySelector("a[href], button:not(:disabled), summary");

  function move(step) {
    const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.offsetParent && targetOf(row));
    if (!rows.length) return;
    const at = rows.findIndex((row) => row.contains(document.activeElement));
    const row = rows[Math.min(Math.max(at + step, 0), rows.length - 1)];
    targetOf(row).focus();
    row.scrollIntoView({ block: "nearest" });
  }

  function press(key) {
    const row = document.activeElement?.closest("tbody tr");
    if (key === "/") document.querySelector("main input[type=search], main [role=search] input:not([type=hidden])")?.focus();
    else if (key === "j") move(1);
    else if (key === "k") move(-1);
    else if (key === "x") row?.querySelector("input[type=checkbox]")?.click();
    else if (key === ".") (row ?? document.querySelector("main .actions"))?.querySelector("summary, button:not(:disabled)")?.focus();
    else if (key === "?") help.showModal();
    else return false;
    return true;
  }

  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.defaultPrevented) return;
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      return palette.open ? palette.close() : open();
    }
    const isTyping = event.target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || isOff() || document.querySelector("dialog[open], :popover-open")) return;
    if (Date.now() - chordAt < CHORD_MS) {
      chordAt = 0;
      const link = document.querySelector(`.top nav [data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === "g") chordAt = Date.now();
    else if (press(event.key)) event.preventDefault();
  });
})();

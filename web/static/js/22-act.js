// Sends forms with `data-act` without leaving the page. A toast shows the outcome for a few seconds, with an undo button if the action
// can be reverted. A double click sends every form only once.
(() => {
  "use strict";

  const SHOWN_MS = 8000, COUNT_MAX = 4, TWICE_MS = 1000;
  const corner = document.getElementById("toasts");
  // When forms that lead to another page were last sent, by their buttons.
  const pressedAt = new WeakMap();
  if (!corner) return;

  function show(toast) {
    corner.append(toast);
    while (corner.children.length > COUNT_MAX) corner.firstElementChild.remove();
    let timer = 0;
    const start = () => { timer = setTimeout(() => toast.remove(), SHOWN_MS); };
    for (const kind of ["pointerenter", "focusin"]) toast.addEventListener(kind, () => clearTimeout(timer));
    for (const kind of ["pointerleave", "focusout"]) toast.addEventListener(kind, () => { clearTimeout(timer); start(); });
    toast.addEventListener("click", (event) => { if (event.target.closest(".shut")) toast.remove(); });
    start();
  }

  function problem(text) {
    const toast = document.createElement("div");
    toast.className = "toast bad";
    toast.setAttribute("role", "alert");
    toast.append(Object.assign(document.createElement("span"), { textContent: text }));
    show(toast);
  }

  async function send(form, submitter) {
    // Ignores the second click of a double click, which would repeat the action.
    if (submitter?.hasAttribute("aria-busy")) return;
    submitter?.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(submitter?.getAttribute("formaction") ?? form.getAttribute("action"), {
        method: "POST",
        headers: { accept: "text/html", "hx-request": "true" },
        body: new URLSearchParams(new FormData(form, submitter)),
      });
      if (answer.redirected) return void location.assign(answer.url);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const toast = page.querySelector(".toast");
      if (toast) show(document.adoptNode(toast));
      else if (!answer.ok) problem([page.querySelector("h1"), page.querySelector(".detail")].map((part) => part?.textContent.trim()).filter(Boolean).join(": ") || answer.statusText);
      form.closest("[popover]")?.hidePopover();
      form.closest(".toast")?.remove();
      window.rondelRefresh?.();
    } catch {
      problem(corner.dataset.lost);
    } finally {
      submitter?.removeAttribute("aria-busy");
    }
  }

  // Whether a form acts on rows of a list, and has neither a chosen row nor a filter.
  function isWithoutChoice(form) {
    const fields = new FormData(form);
    return form.matches("form[data-bulk]") && !["job", "run", "scope"].some((name) => fields.has(name)) && !fields.get("q")?.trim();
  }

  document.addEventListener("submit", (event) => {
    const form = event.target, submitter = event.submitter;
    if (!event.defaultPrevented && isWithoutChoice(form)) {
      event.preventDefault();
      problem(corner.dataset.none);
    }
    if (event.defaultPrevented || (submitter?.getAttribute("formmethod") ?? form.getAttribute("method")) !== "post") return;
    if (form.matches("form[data-act]")) {
      event.preventDefault();
      send(form, submitter);
      return;
    }
    const last = pressedAt.get(submitter ?? form);
    if (last !== undefined && event.timeStamp - last < TWICE_MS) event.preventDefault();
    else pressedAt.set(submitter ?? form, event.timeStamp);
  });

  // Pages about chosen rows are answers to forms. They take the URL of their list, so that reloading them or returning to them does not
  // send the form again.
  const list = document.querySelector("a[data-list]");
  if (list) history.replaceState(null, "", list.href);
})();

// One stream of events per tab. A region with `data-live="run job"` is reloaded (htmx trigger `live`) after events of these two kinds;
// a region with an empty `data-live` is reloaded after all events. Each region is reloaded at most once per second, or once per
// `data-live-gap` seconds. `data-live-job` and `data-live-run` restrict a region to the events of one job or run. With
// `data-live-every`, the region is also reloaded at this interval, in seconds.
// While the tab is hidden, there is no stream and no request. While the stream is broken, regions are reloaded every 15 s.
(() => {
  "use strict";

  const KINDS = ["run", "job", "executor", "node"];
  const GAP_MS = 1000, POLL_MS = 15000, LOST_MS = 6000;
  const { stream: address } = document.body.dataset;
  const dot = document.getElementById("pulse");
  const banner = document.getElementById("stale");
  const states = new WeakMap();
  const postponed = new Map();
  let stream = null, lastId = "", openedAt = 0, downSince = Date.now(), polledAt = 0, freshAt = Date.now(), failed = false;

  const regions = () => document.querySelectorAll("[data-live]");

  const gapOf = (region) => Math.max(GAP_MS, (Number(region.dataset.liveGap) || 0) * 1000);

  function stateOf(region) {
    if (!states.has(region)) states.set(region, { last: Date.now(), gap: gapOf(region), timer: 0 });
    return states.get(region);
  }

  function refresh(region, delay) {
    const state = stateOf(region);
    if (state.timer || document.hidden) return;
    const wait = Math.max(delay ?? 0, state.last + state.gap - Date.now(), 0);
    state.timer = setTimeout(() => {
      state.timer = 0;
      if (document.hidden || !region.isConnected) return;
      state.last = Date.now();
      region.dispatchEvent(new CustomEvent("live"));
    }, wait);
  }

  function refreshAll() {
    for (const region of regions()) {
      stateOf(region).last = 0;
      refresh(region);
    }
  }
  window.rondelRefresh = refreshAll;

  function handleEvent(event) {
    lastId = event.lastEventId || lastId;
    let data = {};
    try { data = JSON.parse(event.data); } catch { /* a block without data */ }
    for (const region of regions()) {
      const { live, liveJob, liveRun } = region.dataset;
      if (live && !live.split(" ").includes(event.type)) continue;
      if (liveJob && liveJob !== (data.job ?? data.name)) continue;
      if (liveRun && liveRun !== data.id) continue;
      refresh(region, 100);
    }
  }

  function listen() {
    if (stream || document.hidden || !address || !window.EventSource) return;
    openedAt = Date.now();
    const query = lastId ? `${address.includes("?") ? "&" : "?"}after=${encodeURIComponent(lastId)}` : "";
    stream = new EventSource(address + query);
    for (const kind of KINDS) stream.addEventListener(kind, handleEvent);
    stream.addEventListener("ready", (event) => {
      lastId = event.lastEventId || lastId;
      downSince = 0;
      freshAt = Date.now();
      if (!regions().length) failed = false;
      show();
    });
    stream.addEventListener("gap", refreshAll);
    stream.addEventListener("error", () => {
      downSince ||= Date.now();
      if (stream?.readyState === EventSource.CLOSED) stream = null;
    });
  }

  function disconnect() {
    stream?.close();
    stream = null;
  }

  function show() {
    if (!dot) return;
    const isDown = downSince && Date.now() - downSince > LOST_MS;
    const isStale = failed && Date.now() - freshAt > LOST_MS;
    dot.dataset.state = isStale ? "lost" : isDown ? "slow" : "live";
    dot.lastElementChild.textContent = dot.getAttribute(`data-word-${dot.dataset.state}`);
    if (banner.hidden !== isStale) return;
    banner.hidden = !isStale;
    // Shows the time in the time zone of the page.
    const at = new Date(freshAt).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: document.body.dataset.zone });
    if (isStale) banner.firstElementChild.textContent = banner.dataset.words.replace("#", at);
  }

  function tick() {
    if (document.hidden) return;
    const now = Date.now();
    for (const region of regions()) {
      const period = Number(region.dataset.liveEvery);
      if (period && now - stateOf(region).last >= period * 1000 - 50) refresh(region);
    }
    const isDown = downSince && now - downSince > LOST_MS;
    if (address && (isDown || failed) && now - polledAt > POLL_MS) {
      polledAt = now;
      refreshAll();
      if (isDown && !regions().length) failed = true;
      if (!stream && now - openedAt > POLL_MS) listen();
    }
    show();
  }

  document.addEventListener("htmx:before:request", (event) => {
    const region = event.target;
    if (document.hidden) {
      const ctx = event.detail.ctx;
      if (ctx?.sourceElement) postponed.set(ctx.sourceElement, ctx.request.action);
      event.preventDefault();
    } else if (region.dataset?.live !== undefined) stateOf(region).began = Date.now();
  });
  document.addEventListener("htmx:after:request", (event) => {
    const region = event.target;
    if (region.dataset?.live === undefined) return;
    const state = stateOf(region);
    // A region that takes long to render is reloaded less often.
    state.gap = Math.max(gapOf(region), 5 * (Date.now() - (state.began ?? Date.now())));
    const status = event.detail.ctx?.response?.status ?? 0;
    failed = status === 0 || status >= 500;
    if (!failed) freshAt = Date.now();
    if (status === 401) location.reload();
  });
  document.addEventListener("htmx:error", (event) => {
    if (event.target.dataset?.live !== undefined) failed = true;
  });

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return disconnect();
    downSince = Date.now();
    listen();
    refreshAll();
    for (const [element, action] of postponed) if (element.isConnected && element.dataset.live === undefined) htmx.ajax("GET", action, { source: element });
    postponed.clear();
  });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", listen);
  listen();
  setInterval(tick, 1000);
})();

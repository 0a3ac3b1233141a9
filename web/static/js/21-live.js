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
  const indicator = document.getElementById("pulse");
  const banner = document.getElementById("stale");
  const states = new WeakMap();
  const postponed = new Map();
  let stream = null, lastId = "", openedAt = 0, disconnectedSince = Date.now(), lastPollAt = 0, lastAnswerAt = Date.now(), failed = false;

  const regions = () => document.querySelectorAll("[data-live]");

  const minGapMs = (region) => Math.max(GAP_MS, (Number(region.dataset.liveGap) || 0) * 1000);

  function regionState(region) {
    if (!states.has(region)) states.set(region, { last: Date.now(), gap: minGapMs(region), timer: 0 });
    return states.get(region);
  }

  function refresh(region, delay) {
    const state = regionState(region);
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
      regionState(region).last = 0;
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

  function openStream() {
    if (stream || document.hidden || !address || !window.EventSource) return;
    openedAt = Date.now();
    const query = lastId ? `${address.includes("?") ? "&" : "?"}after=${encodeURIComponent(lastId)}` : "";
    stream = new EventSource(address + query);
    for (const kind of KINDS) stream.addEventListener(kind, handleEvent);
    stream.addEventListener("ready", (event) => {
      lastId = event.lastEventId || lastId;
      disconnectedSince = 0;
      lastAnswerAt = Date.now();
      if (!regions().length) failed = false;
      showConnection();
    });
    stream.addEventListener("gap", refreshAll);
    stream.addEventListener("error", () => {
      disconnectedSince ||= Date.now();
      if (stream?.readyState === EventSource.CLOSED) stream = null;
    });
  }

  function closeStream() {
    stream?.close();
    stream = null;
  }

  function showConnection() {
    if (!indicator) return;
    const isDown = disconnectedSince && Date.now() - disconnectedSince > LOST_MS;
    const isStale = failed && Date.now() - lastAnswerAt > LOST_MS;
    indicator.dataset.state = isStale ? "lost" : isDown ? "slow" : "live";
    indicator.lastElementChild.textContent = indicator.getAttribute(`data-word-${indicator.dataset.state}`);
    if (banner.hidden !== isStale) return;
    banner.hidden = !isStale;
    // Shows the time in the time zone of the page.
    const at = new Date(lastAnswerAt).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: document.body.dataset.zone });
    if (isStale) banner.firstElementChild.textContent = banner.dataset.words.replace("#", at);
  }

  function tick() {
    if (document.hidden) return;
    const now = Date.now();
    for (const region of regions()) {
      const period = Number(region.dataset.liveEvery);
      if (period && now - regionState(region).last >= period * 1000 - 50) refresh(region);
    }
    const isDown = disconnectedSince && now - disconnectedSince > LOST_MS;
    if (address && (isDown || failed) && now - lastPollAt > POLL_MS) {
      lastPollAt = now;
      refreshAll();
      if (isDown && !regions().length) failed = true;
      if (!stream && now - openedAt > POLL_MS) openStream();
    }
    showConnection();
  }

  document.addEventListener("htmx:before:request", (event) => {
    const region = event.target;
    if (document.hidden) {
      const ctx = event.detail.ctx;
      if (ctx?.sourceElement) postponed.set(ctx.sourceElement, ctx.request.action);
      event.preventDefault();
    } else if (region.dataset?.live !== undefined) regionState(region).began = Date.now();
  });
  document.addEventListener("htmx:after:request", (event) => {
    const region = event.target;
    if (region.dataset?.live === undefined) return;
    const state = regionState(region);
    // A region that takes long to render is reloaded less often.
    state.gap = Math.max(minGapMs(region), 5 * (Date.now() - (state.began ?? Date.now())));
    const status = event.detail.ctx?.response?.status ?? 0;
    failed = status === 0 || status >= 500;
    if (!failed) lastAnswerAt = Date.now();
    if (status === 401) location.reload();
  });
  document.addEventListener("htmx:error", (event) => {
    if (event.target.dataset?.live !== undefined) failed = true;
  });

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return closeStream();
    disconnectedSince = Date.now();
    openStream();
    refreshAll();
    for (const [element, action] of postponed) if (element.isConnected && element.dataset.live === undefined) htmx.ajax("GET", action, { source: element });
    postponed.clear();
  });
  addEventListener("pagehide", closeStream);
  addEventListener("pageshow", openStream);
  openStream();
  setInterval(tick, 1000);
})();

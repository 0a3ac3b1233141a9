// What the server cannot do alone: clocks that go on, and a log that follows its end and stays short.
(() => {
  "use strict";

  const LINE_COUNT_MAX = 5000;
  const body = document.body;
  const [second, minute, hour, day] = body.dataset.units.split(",");

  function coarse(seconds) {
    if (seconds < 90) return `${seconds} ${second}`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} ${minute}`;
    if (seconds < 129600) return `${Math.round(seconds / 3600)} ${hour}`;
    return `${Math.round(seconds / 86400)} ${day}`;
  }

  function tick() {
    const now = Date.now();
    for (const element of document.querySelectorAll("[data-at]")) {
      const away = (Date.parse(element.dataset.at) - now) / 1000;
      const words = away > 0 ? body.dataset.in : body.dataset.ago;
      const text = words.replace("#", coarse(Math.floor(Math.abs(away))));
      if (element.textContent !== text) element.textContent = text;
    }
  }

  function watchLog(log) {
    const follow = document.getElementById("follow");
    const isAtEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    const toEnd = () => { log.scrollTop = log.scrollHeight; };

    function trim() {
      const lines = log.querySelectorAll(".l");
      if (lines.length <= LINE_COUNT_MAX) return;
      for (let i = 0; i < lines.length - LINE_COUNT_MAX; i++) lines[i].remove();
      if (!log.querySelector(".trimmed")) {
        const note = document.createElement("p");
        note.className = "trimmed";
        note.textContent = log.dataset.trimmed;
        log.prepend(note);
      }
    }

    new MutationObserver(() => {
      if (!follow.checked) return;
      trim();
      toEnd();
    }).observe(log, { childList: true });
    log.addEventListener("scroll", () => { follow.checked = isAtEnd(); }, { passive: true });
    follow.addEventListener("change", () => { if (follow.checked) { trim(); toEnd(); } });
    if (!location.hash) toEnd();
  }

  tick();
  setInterval(tick, 1000);
  const log = document.getElementById("log");
  if (log) watchLog(log);
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, textarea, select");
    if (event.key !== "/" || isTyping || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    const search = document.querySelector("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); }
  });
})();

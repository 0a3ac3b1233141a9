// Updates the relative times on the page (`data-at`) every second.
(() => {
  "use strict";

  const body = document.body;
  const [second, minute, hour, day] = body.dataset.units.split(",");

  function lengthText(seconds) {
    if (seconds < 90) return `${seconds} ${second}`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} ${minute}`;
    if (seconds < 129600) return `${Math.round(seconds / 3600)} ${hour}`;
    return `${Math.round(seconds / 86400)} ${day}`;
  }

  function tick() {
    const now = Date.now();
    for (const element of document.querySelectorAll("[data-at]")) {
      const secondsAhead = (Date.parse(element.dataset.at) - now) / 1000;
      const words = secondsAhead > 0 ? body.dataset.in : body.dataset.ago;
      const text = words.replace("#", lengthText(Math.floor(Math.abs(secondsAhead))));
      if (element.textContent !== text) element.textContent = text;
    }
  }

  tick();
  setInterval(tick, 1000);
})();

// Writes the browser's time zone to a cookie, so that the server shows times in it.
(() => {
  "use strict";
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const secure = location.protocol === "https:" ? "; secure" : "";
  const known = document.body.dataset.zone;
  if (!zone || zone === known) return;
  const isNew = !document.cookie.includes(`rondel_zone=${zone}`);
  document.cookie = `rondel_zone=${zone}; path=/; max-age=31536000; samesite=lax${secure}`;
  // The page was rendered in another time zone, so it is loaded again.
  if (isNew && document.body.dataset.clock === "mine" && document.cookie.includes("rondel_zone=") && document.querySelector("main time")) location.reload();
})();

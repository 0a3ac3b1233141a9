// <rondel-log>: a window onto a log of any length. It opens at the end of the log, loads more lines as the user scrolls, jumps to a line
// by its number, polls for new lines, and searches on the server.
(() => {
  "use strict";

  const WINDOW_MAX = 2000;
  const LINE_STEP = 400;
  const EDGE_PX = 500;
  const POLL_MS_MIN = 700;
  const POLL_MS_MAX = 4000;

  class RondelLog extends HTMLElement {
    connectedCallback() {
      if (this.view) return;
      this.view = this.querySelector(".log");
      this.follow = this.querySelector("[name=follow]");
      this.hitBox = this.querySelector(".log-hits");
      this.hits = [];
      this.pollDelay = POLL_MS_MIN;
      this.isFiltered = Boolean(this.querySelector("[name=contains]").value);
      this.readExtent(this.view.querySelector("data"));
      this.listen();
      const options = (localStorage.getItem("rondel-log") ?? "wrap times").split(" ");
      for (const box of this.querySelectorAll(".log-looks [name=wrap], .log-looks [name=times]")) {
        box.checked = options.includes(box.name);
        this.applyOption(box);
      }
      this.begin();
    }

    disconnectedCallback() { clearTimeout(this.timer); }

    async begin() {
      const form = this.querySelector(".log-find");
      const linesInUrl = this.linesInUrl();
      if (this.isFiltered) await this.search({ contains: form.elements.contains.value });
      else if (linesInUrl) await this.goTo(linesInUrl);
      else if (!new URLSearchParams(location.search).has("line")) this.scrollToEnd();
      this.follow.checked = this.isAtEnd();
      if (!this.isFiltered) this.loadCounts();
      this.isFiltered = false;
      this.poll();
    }

    listen() {
      this.view.addEventListener("scroll", () => this.scrolled(), { passive: true });
      new ResizeObserver(() => { if (this.follow.checked) this.scrollToEnd(); }).observe(this.view);
      this.view.addEventListener("click", (event) => this.choose(event));
      this.querySelector(".log-find").addEventListener("submit", (event) => {
        event.preventDefault();
        const contains = event.target.elements.contains.value.trim();
        if (contains) this.search({ contains }); else this.clearSearch();
      });
      this.addEventListener("click", (event) => {
        const { severity, step } = event.target.closest("button")?.dataset ?? {};
        if (severity) this.search({ severity });
        if (step) this.stepToHit(Number(step));
      });
      this.querySelector(".log-looks").addEventListener("change", (event) => {
        if (event.target !== this.follow) this.applyOption(event.target, true);
        else if (this.follow.checked) this.showEnd();
      });
      addEventListener("hashchange", () => { const lines = this.linesInUrl(); if (lines) this.goTo(lines); });
      document.addEventListener("visibilitychange", () => this.poll());
      document.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || !this.activeQuery) return;
        if (event.target.closest("input[type=search]") ? event.key !== "Escape" : event.target.closest("input, textarea, select")) return;
        const step = { n: 1, N: -1, Escape: 0 }[event.key];
        if (step !== undefined) { event.preventDefault(); this.stepToHit(step); }
      });
    }

    // Reads from the `data` element which lines the server has sent, then removes the element.
    readExtent(extent) {
      if (!extent) return;
      const { first, last, total, next } = extent.dataset;
      this.first = Number(first);
      this.last = Number(last);
      this.total = Math.max(this.total ?? 0, Number(total), this.last);
      this.next = next;
      extent.remove();
      this.classList.toggle("live", Boolean(next));
      if (!next) this.querySelector(".tail")?.remove();
    }

    async load(query) {
      const answer = await fetch(`${this.querySelector("[data-window]").href}&${query}`);
      if (!answer.ok) throw new Error(`the log: ${answer.status}`);
      const page = document.createElement("template");
      page.innerHTML = await answer.text();
      const extent = page.content.querySelector("data");
      for (const line of page.content.children) this.mark(line);
      return { content: page.content, extent };
    }

    // Loads lines with one request at a time. A request is dropped while another one is in progress.
    async runExclusive(work) {
      if (this.isBusy) return;
      this.isBusy = true;
      try {
        await work();
        this.querySelector("[data-lost]").hidden = true;
      } catch {
        this.querySelector("[data-lost]").hidden = false;
      } finally {
        this.isBusy = false;
      }
    }

    // Changes the lines without moving those that are visible.
    keepInView(change) {
      const top = this.view.getBoundingClientRect().top;
      const anchor = [...this.view.children].find((line) => line.getBoundingClientRect().bottom > top);
      const before = anchor?.getBoundingClientRect().top;
      change();
      if (anchor?.isConnected) this.view.scrollTop += anchor.getBoundingClientRect().top - before;
    }

    drop(count, isTop) {
      for (let i = 0; i < count; i++) (isTop ? this.view.firstElementChild : this.view.lastElementChild).remove();
    }

    add({ content, extent }, isTop) {
      const { first, last, total, next } = this;
      this.readExtent(extent);
      if (isTop) Object.assign(this, { last, next, total: Math.max(total, this.total) });
      else this.first = this.view.childElementCount ? first : this.first;
      if (!isTop && !content.children.length) this.last = Math.max(last, this.last);
      const isFollowing = !isTop && this.follow.checked;
      this.keepInView(() => {
        this.view[isTop ? "prepend" : "append"](content);
        const excessCount = this.view.childElementCount - WINDOW_MAX;
        if (excessCount > 0) this.drop(excessCount, !isTop);
        if (excessCount > 0 && isTop) this.last -= excessCount;
        if (excessCount > 0 && !isTop) this.first += excessCount;
      });
      if (this.last > 0) this.querySelector("[data-none]").hidden = true;
      if (isFollowing) this.scrollToEnd();
    }

    async replace(query) {
      const { content, extent } = await this.load(query);
      this.readExtent(extent);
      this.view.replaceChildren(content);
    }

    scrolled() {
      const { scrollTop, scrollHeight, clientHeight } = this.view;
      // Only scrolling up stops following. A position that moves down without reaching the end can result from lines that the script has
      // added.
      if (this.isAtEnd()) this.follow.checked = true;
      else if (scrollTop < this.top - 2) this.follow.checked = false;
      this.top = scrollTop;
      if (this.isFiltered) return;
      if (scrollTop < EDGE_PX && this.first > 1) {
        this.runExclusive(async () => this.add(await this.load(`before=${this.first}&limit=${LINE_STEP}`), true));
      } else if (scrollHeight - scrollTop - clientHeight < EDGE_PX && this.last < this.total) {
        this.runExclusive(async () => this.add(await this.load(`from_line=${this.last + 1}&limit=${LINE_STEP}`), false));
      }
    }

    isAtEnd() {
      return this.last >= this.total && this.view.scrollHeight - this.view.scrollTop - this.view.clientHeight < 40;
    }

    scrollToEnd() { this.view.scrollTop = this.view.scrollHeight; }

    async showEnd() {
      if (this.last < this.total) await this.runExclusive(() => this.replace(`tail=${LINE_STEP}&limit=${LINE_STEP}`));
      this.scrollToEnd();
      this.poll();
    }

    // Polls for new lines while the last line is in the window and the page is visible.
    poll() {
      clearTimeout(this.timer);
      if (!this.next || document.hidden) return;
      this.timer = setTimeout(async () => {
        const hasRoom = this.follow.checked || this.view.childElementCount < WINDOW_MAX;
        if (this.last >= this.total && hasRoom) {
          await this.runExclusive(async () => {
            const part = await this.load(`after=${encodeURIComponent(this.next)}&limit=${LINE_STEP}`);
            const lines = [...part.content.children].filter((line) => line.matches(".l"));
            this.pollDelay = lines.length ? POLL_MS_MIN : Math.min(this.pollDelay * 1.5, POLL_MS_MAX);
            this.addToCounts(lines);
            this.add(part, false);
            if (!this.next) this.loadCounts();
          });
        }
        this.poll();
      }, this.pollDelay);
    }

    // The lines in the URL's fragment: #L30000, #L10-L20.
    linesInUrl() {
      const match = /^#L(\d+)(?:-L?(\d+))?$/.exec(location.hash);
      return match && [Number(match[1]), Number(match[2] ?? match[1])].sort((a, b) => a - b);
    }

    async goTo([from, to]) {
      this.follow.checked = false;
      await this.showLine(from);
      for (const line of this.view.querySelectorAll(".chosen")) line.classList.remove("chosen");
      for (let number = from; number <= Math.min(to, from + WINDOW_MAX); number++) this.lineElement(number)?.classList.add("chosen");
    }

    lineElement(number) { return this.view.querySelector(`#L${number}`); }

    // Scrolls a line to the middle. Loads the line first if it is not in the window.
    async showLine(number) {
      if (!this.lineElement(number)) {
        while (this.isBusy) await new Promise((done) => setTimeout(done, 20));
        await this.runExclusive(() => this.replace(`around=${number}&limit=${LINE_STEP}`));
      }
      const line = this.lineElement(number) ?? this.view.lastElementChild;
      if (!line) return;
      const { top, height } = line.getBoundingClientRect();
      this.view.scrollTop += top - this.view.getBoundingClientRect().top - (this.view.clientHeight - height) / 2;
    }

    // A click on a line number puts the line into the URL. With Shift, the URL gets the range from its current line to this one.
    choose(event) {
      const link = event.target.closest(".l > a");
      if (!link || event.ctrlKey || event.metaKey || !link.getAttribute("href").startsWith("#")) return;
      event.preventDefault();
      const number = Number(link.textContent);
      const before = event.shiftKey && this.linesInUrl()?.[0];
      const range = before ? [before, number].sort((a, b) => a - b) : [number, number];
      history.replaceState(null, "", `#L${range[0]}${range[1] > range[0] ? `-L${range[1]}` : ""}`);
      this.goTo(range);
    }

    async request(query) {
      const answer = await fetch(`${this.querySelector("[data-search]").href}&${new URLSearchParams(query)}`);
      return answer.ok ? answer.json() : null;
    }

    async loadCounts() { this.showResult(await this.request({})); }

    showResult(result) {
      if (!result) return;
      this.counts = result.severities;
      this.countedLineCount = result.line_count;
      this.querySelector("[data-gaps]").hidden = !result.has_gaps;
      this.showCounts();
    }

    showCounts() {
      for (const button of this.querySelectorAll("[data-severity]")) {
        const count = this.counts[button.dataset.severity];
        button.disabled = !count;
        button.lastElementChild.textContent = count.toLocaleString(document.documentElement.lang);
      }
    }

    // Adds new lines to the counts of severities.
    addToCounts(lines) {
      if (!this.counts || !lines.length) return;
      for (const line of lines) {
        if (Number(line.id.slice(1)) <= this.countedLineCount) continue;
        const word = ["error", "warn"].find((word) => line.classList.contains(word));
        this.counts[word ?? (line.classList.contains("faint") ? "debug" : "info")]++;
      }
      this.countedLineCount = Math.max(this.countedLineCount, Number(lines.at(-1).id.slice(1)));
      this.showCounts();
    }

    async search(query) {
      if (query.severity && query.severity === this.activeQuery?.severity) { this.stepToHit(1); return; }
      const result = await this.request(query);
      if (!result) return;
      if (this.isFiltered) this.view.replaceChildren();
      this.showResult(result);
      Object.assign(this, { activeQuery: query, hits: result.hits, hitCount: result.hit_count, hitIndex: -1, isFiltered: false });
      this.hitSet = new Set(result.hits);
      this.markLines();
      this.hitBox.hidden = false;
      if (result.hits.length) await this.stepToHit(1); else this.hitBox.querySelector("output").textContent = "0";
      this.view.focus({ preventScroll: true });
    }

    async stepToHit(by) {
      if (!by) { this.clearSearch(); return; }
      if (!this.hits.length) return;
      this.hitIndex = (this.hitIndex + by + this.hits.length) % this.hits.length;
      this.follow.checked = false;
      this.hitBox.querySelector("output").textContent = `${this.hitIndex + 1} / ${this.hitCount}`;
      await this.showLine(this.hits[this.hitIndex]);
      this.markLines();
    }

    clearSearch() {
      Object.assign(this, { activeQuery: null, hits: [], hitSet: null, hitIndex: -1 });
      this.hitBox.hidden = true;
      this.markLines();
    }

    markLines() {
      for (const line of this.view.children) this.mark(line);
      for (const button of this.querySelectorAll("[data-severity]")) {
        button.setAttribute("aria-pressed", this.activeQuery?.severity === button.dataset.severity);
      }
      this.highlight();
    }

    mark(line) {
      const number = Number(line.id.slice(1));
      line.classList.toggle("found", Boolean(this.hitSet?.has(number)));
      line.classList.toggle("at", number > 0 && this.hits[this.hitIndex] === number);
    }

    highlight() {
      const text = this.activeQuery?.contains?.toLowerCase();
      CSS.highlights?.delete("log-hit");
      if (!text || !CSS.highlights) return;
      const ranges = [];
      for (const line of this.view.querySelectorAll(".found > span")) {
        const nodes = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
        while (nodes.nextNode()) {
          const node = nodes.currentNode;
          const at = node.data.toLowerCase().indexOf(text);
          if (at < 0 || at + text.length > node.data.length) continue;
          const range = new Range();
          range.setStart(node, at);
          range.setEnd(node, at + text.length);
          ranges.push(range);
        }
      }
      CSS.highlights.set("log-hit", new Highlight(...ranges));
    }

    applyOption(box, isSaved) {
      this.classList.toggle(`no-${box.name}`, !box.checked);
      if (!isSaved) return;
      const names = [...this.querySelectorAll(".log-looks :checked")].map((one) => one.name).filter((name) => name !== "follow");
      localStorage.setItem("rondel-log", names.join(" "));
    }
  }

  customElements.define("rondel-log", RondelLog);
})();

// <rondel-log>: a window onto a log of any length. It opens at the end of the log, loads more lines as the user scrolls, jumps to a line
// by its number, polls for new lines, and searches on the server.
(() => {
  "use strict";

  const WINDOW_MAX = 2000;
  const STEP = 400;
  const NEAR = 500;
  const BUSY_MS = 700;
  const QUIET_MS_MAX = 4000;

  class RondelLog extends HTMLElement {
    connectedCallback() {
      if (this.view) return;
      this.view = this.querySelector(".log");
      this.follow = this.querySelector("[name=follow]");
      this.hitBox = this.querySelector(".log-hits");
      this.hits = [];
      this.wait = BUSY_MS;
      this.isFiltered = Boolean(this.querySelector("[name=contains]").value);
      this.readExtent(this.view.querySelector("data"));
      this.listen();
      const looks = (localStorage.getItem("rondel-log") ?? "wrap times").split(" ");
      for (const box of this.querySelectorAll(".log-looks [name=wrap], .log-looks [name=times]")) {
        box.checked = looks.includes(box.name);
        this.applyOption(box);
      }
      this.begin();
    }

    disconnectedCallback() { clearTimeout(this.timer); }

    async begin() {
      const form = this.querySelector(".log-find");
      const chosen = this.chosen();
      if (this.isFiltered) await this.search({ contains: form.elements.contains.value });
      else if (chosen) await this.goTo(chosen);
      else if (!new URLSearchParams(location.search).has("line")) this.toEnd();
      this.follow.checked = this.isAtEnd();
      if (!this.isFiltered) this.count();
      this.isFiltered = false;
      this.poll();
    }

    listen() {
      this.view.addEventListener("scroll", () => this.scrolled(), { passive: true });
      new ResizeObserver(() => { if (this.follow.checked) this.toEnd(); }).observe(this.view);
      this.view.addEventListener("click", (event) => this.choose(event));
      this.querySelector(".log-find").addEventListener("submit", (event) => {
        event.preventDefault();
        const contains = event.target.elements.contains.value.trim();
        if (contains) this.search({ contains }); else this.clear();
      });
      this.addEventListener("click", (event) => {
        const { severity, step } = event.target.closest("button")?.dataset ?? {};
        if (severity) this.search({ severity });
        if (step) this.step(Number(step));
      });
      this.querySelector(".log-looks").addEventListener("change", (event) => {
        if (event.target !== this.follow) this.applyOption(event.target, true);
        else if (this.follow.checked) this.end();
      });
      addEventListener("hashchange", () => { const lines = this.chosen(); if (lines) this.goTo(lines); });
      document.addEventListener("visibilitychange", () => this.poll());
      document.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || !this.asked) return;
        if (event.target.closest("input[type=search]") ? event.key !== "Escape" : event.target.closest("input, textarea, select")) return;
        const step = { n: 1, N: -1, Escape: 0 }[event.key];
        if (step !== undefined) { event.preventDefault(); this.step(step); }
      });
    }

    // Reads from the `data` element which lines the server has sent, then removes the element.
    readExtent(at) {
      if (!at) return;
      const { first, last, total, next } = at.dataset;
      this.first = Number(first);
      this.last = Number(last);
      this.total = Math.max(this.total ?? 0, Number(total), this.last);
      this.next = next;
      at.remove();
      this.classList.toggle("live", Boolean(next));
      if (!next) this.querySelector(".tail")?.remove();
    }

    async load(query) {
      const answer = await fetch(`${this.querySelector("[data-window]").href}&${query}`);
      if (!answer.ok) throw new Error(`the log: ${answer.status}`);
      const page = document.createElement("template");
      page.innerHTML = await answer.text();
      const at = page.content.querySelector("data");
      for (const line of page.content.children) this.mark(line);
      return { content: page.content, at };
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

    add({ content, at }, isTop) {
      const { first, last, total, next } = this;
      this.readExtent(at);
      if (isTop) Object.assign(this, { last, next, total: Math.max(total, this.total) });
      else this.first = this.view.childElementCount ? first : this.first;
      if (!isTop && !content.children.length) this.last = Math.max(last, this.last);
      const isFollowing = !isTop && this.follow.checked;
      this.keepInView(() => {
        this.view[isTop ? "prepend" : "append"](content);
        const excess = this.view.childElementCount - WINDOW_MAX;
        if (excess > 0) this.drop(excess, !isTop);
        if (excess > 0 && isTop) this.last -= excess;
        if (excess > 0 && !isTop) this.first += excess;
      });
      if (this.last > 0) this.querySelector("[data-none]").hidden = true;
      if (isFollowing) this.toEnd();
    }

    async replace(query) {
      const { content, at } = await this.load(query);
      this.readExtent(at);
      this.view.replaceChildren(content);
    }

    scrolled() {
      const { scrollTop, scrollHeight, clientHeight } = this.view;
      // Only scrolling back stops following: all other changes of the position are made by the script and not by the user.
      if (this.isAtEnd()) this.follow.checked = true;
      else if (scrollTop < this.top - 2) this.follow.checked = false;
      this.top = scrollTop;
      if (this.isFiltered) return;
      if (scrollTop < NEAR && this.first > 1) {
        this.runExclusive(async () => this.add(await this.load(`before=${this.first}&limit=${STEP}`), true));
      } else if (scrollHeight - scrollTop - clientHeight < NEAR && this.last < this.total) {
        this.runExclusive(async () => this.add(await this.load(`from_line=${this.last + 1}&limit=${STEP}`), false));
      }
    }

    isAtEnd() {
      return this.last >= this.total && this.view.scrollHeight - this.view.scrollTop - this.view.clientHeight < 40;
    }

    toEnd() { this.view.scrollTop = this.view.scrollHeight; }

    async end() {
      if (this.last < this.total) await this.runExclusive(() => this.replace(`tail=${STEP}&limit=${STEP}`));
      this.toEnd();
      this.poll();
    }

    // Polls for new lines while the last line is in the window and the page is visible.
    poll() {
      clearTimeout(this.timer);
      if (!this.next || document.hidden) return;
      this.timer = setTimeout(async () => {
        const isRoomy = this.follow.checked || this.view.childElementCount < WINDOW_MAX;
        if (this.last >= this.total && isRoomy) {
          await this.runExclusive(async () => {
            const part = await this.load(`after=${encodeURIComponent(this.next)}&limit=${STEP}`);
            const lines = [...part.content.children].filter((line) => line.matches(".l"));
            this.wait = lines.length ? BUSY_MS : Math.min(this.wait * 1.5, QUIET_MS_MAX);
            this.tally(lines);
            this.add(part, false);
            if (!this.next) this.count();
          });
        }
        this.poll();
      }, this.wait);
    }

    // The lines in the URL's fragment: #L30000, #L10-L20.
    chosen() {
      const found = /^#L(\d+)(?:-L?(\d+))?$/.exec(location.hash);
      return found && [Number(found[1]), Number(found[2] ?? found[1])].sort((a, b) => a - b);
    }

    async goTo([from, to]) {
      this.follow.checked = false;
      await this.showLine(from);
      for (const line of this.view.querySelectorAll(".chosen")) line.classList.remove("chosen");
      for (let number = from; number <= Math.min(to, from + WINDOW_MAX); number++) this.line(number)?.classList.add("chosen");
    }

    line(number) { return this.view.querySelector(`#L${number}`); }

    // Scrolls a line to the middle. Loads the line first if it is not in the window.
    async showLine(number) {
      if (!this.line(number)) {
        while (this.isBusy) await new Promise((done) => setTimeout(done, 20));
        await this.runExclusive(() => this.replace(`around=${number}&limit=${STEP}`));
      }
      const line = this.line(number) ?? this.view.lastElementChild;
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
      const before = event.shiftKey && this.chosen()?.[0];
      const range = before ? [before, number].sort((a, b) => a - b) : [number, number];
      history.replaceState(null, "", `#L${range[0]}${range[1] > range[0] ? `-L${range[1]}` : ""}`);
      this.goTo(range);
    }

    async request(query) {
      const answer = await fetch(`${this.querySelector("[data-search]").href}&${new URLSearchParams(query)}`);
      return answer.ok ? answer.json() : null;
    }

    async count() { this.show(await this.request({})); }

    show(found) {
      if (!found) return;
      this.counts = found.severities;
      this.counted = found.line_count;
      this.querySelector("[data-gaps]").hidden = !found.has_gaps;
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
    tally(lines) {
      if (!this.counts || !lines.length) return;
      for (const line of lines) {
        if (Number(line.id.slice(1)) <= this.counted) continue;
        const word = ["error", "warn"].find((word) => line.classList.contains(word));
        this.counts[word ?? (line.classList.contains("faint") ? "debug" : "info")]++;
      }
      this.counted = Math.max(this.counted, Number(lines.at(-1).id.slice(1)));
      this.showCounts();
    }

    async search(query) {
      if (query.severity && query.severity === this.asked?.severity) { this.step(1); return; }
      const found = await this.request(query);
      if (!found) return;
      if (this.isFiltered) this.view.replaceChildren();
      this.show(found);
      Object.assign(this, { asked: query, hits: found.hits, hitCount: found.hit_count, place: -1, isFiltered: false });
      this.hitSet = new Set(found.hits);
      this.markLines();
      this.hitBox.hidden = false;
      if (found.hits.length) await this.step(1); else this.hitBox.querySelector("output").textContent = "0";
      this.view.focus({ preventScroll: true });
    }

    async step(by) {
      if (!by) { this.clear(); return; }
      if (!this.hits.length) return;
      this.place = (this.place + by + this.hits.length) % this.hits.length;
      this.follow.checked = false;
      this.hitBox.querySelector("output").textContent = `${this.place + 1} / ${this.hitCount}`;
      await this.showLine(this.hits[this.place]);
      this.markLines();
    }

    clear() {
      Object.assign(this, { asked: null, hits: [], hitSet: null, place: -1 });
      this.hitBox.hidden = true;
      this.markLines();
    }

    markLines() {
      for (const line of this.view.children) this.mark(line);
      for (const button of this.querySelectorAll("[data-severity]")) {
        button.setAttribute("aria-pressed", this.asked?.severity === button.dataset.severity);
      }
      this.highlight();
    }

    mark(line) {
      const number = Number(line.id.slice(1));
      line.classList.toggle("found", Boolean(this.hitSet?.has(number)));
      line.classList.toggle("at", number > 0 && this.hits[this.place] === number);
    }

    highlight() {
      const text = this.asked?.contains?.toLowerCase();
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

    applyOption(box, isKept) {
      this.classList.toggle(`no-${box.name}`, !box.checked);
      if (!isKept) return;
      const kept = [...this.querySelectorAll(".log-looks :checked")].map((one) => one.name).filter((name) => name !== "follow");
      localStorage.setItem("rondel-log", kept.join(" "));
    }
  }

  customElements.define("rondel-log", RondelLog);
})();

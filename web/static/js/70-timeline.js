// The lanes of a timeline: a cursor that shows the time or why nothing ran, a link from each gap to its explanation, and panning and
// zooming by keys. The explanations of all gaps of a lane are loaded in one request, when the pointer or the focus stays on the lane.
// Without this script, the lanes are a drawing with links, and there are links above it for zooming and panning.
customElements.define('rondel-timeline', class extends HTMLElement {
  connectedCallback() {
    if (this.tip) return
    this.tip = this.appendChild(Object.assign(document.createElement('div'), { className: 'tip', hidden: true }))
    this.line = this.appendChild(Object.assign(document.createElement('div'), { className: 'cursor', hidden: true }))
    this.addEventListener('pointermove', event => this.move(event))
    this.addEventListener('pointerleave', () => { this.pointer = null; this.hide() })
    this.tip.setAttribute('role', 'status')
    this.addEventListener('focusin', event => this.focusLane(event))
    this.addEventListener('focusout', event => { if (event.target.matches('.gap-key')) this.hide() })
    this.addEventListener('click', event => this.activate(event))
    if (document.querySelector('[data-pan]')) this.tabIndex = 0
    this.addEventListener('keydown', event => { if (!this.walkGaps(event) && this.tabIndex === 0) this.zoomOrPan(event) })
  }

  // The lane, its box, and the instant under the pointer. `null` outside of the lanes.
  locate(event) {
    const track = event.target.closest('.track')
    if (!track) return null
    const box = track.getBoundingClientRect()
    const fraction = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width))
    return { track, box, time: new Date(+this.dataset.from + fraction * (this.dataset.to - this.dataset.from)) }
  }

  hide() {
    clearTimeout(this.timer)
    this.tip.hidden = this.line.hidden = true
  }

  // The gaps of a lane. `undefined` if they are not loaded yet.
  loadedGaps(track) {
    const shown = this.dataset.from + '-' + this.dataset.to
    if (this.shown !== shown) [this.shown, this.lanes] = [shown, new Map()]
    return this.lanes.get(track.dataset.gaps)
  }

  async load(track) {
    if (this.loadedGaps(track)) return this.loadedGaps(track)
    const lanes = this.lanes, address = track.dataset.gaps
    const [from, to] = [this.dataset.from, this.dataset.to].map(ms => new Date(+ms).toISOString())
    const answer = await fetch(address + '?' + new URLSearchParams({ from, to }), { headers: { accept: 'application/json' } })
    lanes.set(address, answer.ok ? (await answer.json()).gaps : [])
    return lanes.get(address)
  }

  // The gap that contains an instant, if the gaps are loaded.
  gap(track, time) {
    return this.loadedGaps(track)?.find(gap => gap.from_ms <= time && time < gap.to_ms)
  }

  // Loads the gaps of a lane after the pointer has stayed on it for a moment.
  loadSoon(track) {
    clearTimeout(this.timer)
    if (!track.dataset.gaps || this.loadedGaps(track)) return
    this.timer = setTimeout(() => this.load(track).then(() => { if (this.pointer) this.move(this.pointer) }).catch(() => {}), 150)
  }

  // Shows the newest gap of a lane when the lane's button gets the focus.
  async focusLane(event) {
    const key = event.target.closest('.gap-key')
    if (!key) return
    const track = key.closest('.lane').querySelector('.track')
    await this.load(track).catch(() => {})
    if (document.activeElement === key) this.show(track, this.skippedGaps(track).length - 1)
  }

  // The gaps of a lane in which a fire was left out.
  skippedGaps(track) {
    return (this.loadedGaps(track) ?? []).filter(gap => gap.at_ms !== null)
  }

  show(track, index) {
    const all = this.skippedGaps(track), gap = all[index]
    this.index = index
    this.tip.hidden = false
    this.tip.textContent = gap ? `${index + 1}/${all.length} · ${gap.text}` : this.dataset.noGap
    const [ownRect, box] = [this.getBoundingClientRect(), track.getBoundingClientRect()]
    const { from, to } = this.dataset
    const fraction = gap ? Math.min(1, Math.max(0, ((gap.at_ms + gap.to_ms) / 2 - from) / (to - from))) : 0
    this.line.hidden = !gap
    this.place(ownRect, box, box.left - ownRect.left + fraction * box.width)
  }

  place(ownRect, box, x) {
    this.line.style.cssText = `left:${x}px;top:0;height:${ownRect.height}px`
    const left = Math.min(x + 10, ownRect.width - this.tip.offsetWidth - 4)
    this.tip.style.cssText = `left:${Math.max(0, left)}px;top:${box.top - ownRect.top - 24}px`
  }

  // Moves from gap to gap by keys. Returns whether the key was handled.
  walkGaps(event) {
    const key = event.target.closest('.gap-key')
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key]
    if (!key || (!step && event.key !== 'Enter')) return false
    const track = key.closest('.lane').querySelector('.track')
    const all = this.skippedGaps(track)
    event.preventDefault()
    if (step && all.length) this.show(track, (this.index + step + all.length) % all.length)
    if (!step && all[this.index]) this.explainGap(track, all[this.index].at_ms)
    return true
  }

  explainGap(track, ms) {
    location.href = track.dataset.href + encodeURIComponent(new Date(ms).toISOString().slice(0, 19))
  }

  move(event) {
    const lanePoint = this.locate(event)
    this.pointer = lanePoint && event
    this.tip.hidden = this.line.hidden = !lanePoint
    if (!lanePoint) return clearTimeout(this.timer)
    const ownRect = this.getBoundingClientRect()
    // The lane itself has no title: the first `title` within it belongs to a mark.
    const mark = event.target === lanePoint.track || event.target.matches('.base') ? null : event.target
    const title = mark && (mark.closest('a, g, path')?.querySelector('title') || mark.querySelector('title'))
    const x = event.clientX - ownRect.left
    const gap = !title && lanePoint.track.dataset.href && lanePoint.time <= Date.now()
    const iso = lanePoint.time.toISOString()
    if (gap) this.loadSoon(lanePoint.track)
    const reason = gap && this.gap(lanePoint.track, +lanePoint.time)?.text
    this.tip.textContent = title ? title.textContent : iso.slice(5, 16).replace('T', ' ') + ' UTC' + (gap ? ' · ' + (reason ?? this.dataset.why) : '')
    this.place(ownRect, lanePoint.box, x)
  }

  activate(event) {
    const lanePoint = this.locate(event)
    const key = event.target.closest('.gap-key')
    if (key) return void key.focus()
    if (lanePoint && event.target.matches('rect.all')) return this.openRunList(lanePoint.track, event.target)
    if (!lanePoint || event.target.closest('a') || !lanePoint.track.dataset.href || lanePoint.time > Date.now()) return
    // A click into a gap leads to the explanation of the fire that was left out.
    this.explainGap(lanePoint.track, this.gap(lanePoint.track, +lanePoint.time)?.at_ms ?? +lanePoint.time)
  }

  // Opens the list of the runs in a bar that stands for several runs. A bar of a stretch begins and ends at a full quarter of an hour.
  // A bar of touching runs need not, and its runs begin a little after their planned instants, so the list begins a minute earlier.
  openRunList(track, rect) {
    const quarter = 900000, minute = 60000, { from, to } = this.dataset
    const instant = x => Math.round(+from + x / 10000 * (to - from))
    const at = x => Math.round(instant(x) / quarter) * quarter
    const [x, width] = ['x', 'width'].map(name => +rect.getAttribute(name))
    // `until` in a filter includes its instant.
    const ends = rect.matches('.stretch')
      ? [at(x), Math.max(at(x + width + 8), at(x) + quarter) - 1]
      : [instant(x) - minute, instant(x + width + 1)]
    const [start, end] = ends.map(ms => new Date(ms).toISOString())
    location.href = track.dataset.runs + encodeURIComponent(`since:${start} until:${end}`)
  }

  zoomOrPan(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return
    const zoomLinks = [...document.querySelectorAll('[data-zoom]')]
    const currentIndex = zoomLinks.findIndex(link => link.hasAttribute('aria-current'))
    const link = {
      ArrowLeft: () => document.querySelector('[data-pan=earlier]'),
      ArrowRight: () => document.querySelector('[data-pan=later]'),
      Home: () => document.querySelector('[data-pan=now]'),
      '+': () => zoomLinks[currentIndex - 1],
      '-': () => zoomLinks[currentIndex + 1],
    }[event.key]?.()
    if (!link) return
    event.preventDefault()
    link.click()
  }
})

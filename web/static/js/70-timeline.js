// The lanes of a timeline: a cursor with its time, a click into a gap that asks why, panning and zooming by keys.
// Without this script the lanes are a drawing with links, and zoom and panning are links above it.
customElements.define('rondel-timeline', class extends HTMLElement {
  connectedCallback() {
    if (this.tip) return
    this.tip = this.appendChild(Object.assign(document.createElement('div'), { className: 'tip', hidden: true }))
    this.line = this.appendChild(Object.assign(document.createElement('div'), { className: 'cursor', hidden: true }))
    this.addEventListener('pointermove', event => this.move(event))
    this.addEventListener('pointerleave', () => { this.tip.hidden = this.line.hidden = true })
    this.addEventListener('click', event => this.ask(event))
    if (document.querySelector('[data-pan]')) {
      this.tabIndex = 0
      this.addEventListener('keydown', event => this.press(event))
    }
  }

  // The instant under the pointer; none outside of a lane.
  at(event) {
    const track = event.target.closest('.track')
    if (!track) return null
    const box = track.getBoundingClientRect()
    const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width))
    return { track, box, time: new Date(+this.dataset.from + part * (this.dataset.to - this.dataset.from)) }
  }

  move(event) {
    const found = this.at(event)
    this.tip.hidden = this.line.hidden = !found
    if (!found) return
    const own = this.getBoundingClientRect()
    const title = event.target.closest('a, g, path')?.querySelector('title') || event.target.querySelector('title')
    const x = event.clientX - own.left
    const gap = !title && found.track.dataset.href
    const iso = found.time.toISOString()
    this.tip.textContent = title ? title.textContent : iso.slice(5, 16).replace('T', ' ') + ' UTC' + (gap ? ' · ' + this.dataset.why : '')
    this.line.style.cssText = `left:${x}px;top:0;height:${own.height}px`
    const left = Math.min(x + 10, own.width - this.tip.offsetWidth - 4)
    this.tip.style.cssText = `left:${Math.max(0, left)}px;top:${found.box.top - own.top - 24}px`
  }

  ask(event) {
    const found = this.at(event)
    if (found && event.target.matches('rect.all')) return this.list(found.track, event.target)
    if (!found || event.target.closest('a') || !found.track.dataset.href || found.time > Date.now()) return
    location.href = found.track.dataset.href + encodeURIComponent(found.time.toISOString().slice(0, 19))
  }

  // The runs of a bar that stands for several: stretches begin and end at quarters of an hour.
  list(track, rect) {
    const quarter = 900000, { from, to } = this.dataset
    const at = x => Math.round((+from + x / 10000 * (to - from)) / quarter) * quarter
    const [x, width] = ['x', 'width'].map(name => +rect.getAttribute(name))
    const [start, end] = [at(x), Math.max(at(x + width + 8), at(x) + quarter)].map(ms => new Date(ms).toISOString().slice(0, 19) + 'Z')
    location.href = track.dataset.runs + encodeURIComponent(`since:${start} until:${end}`)
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return
    const zooms = [...document.querySelectorAll('[data-zoom]')]
    const on = zooms.findIndex(link => link.hasAttribute('aria-current'))
    const link = {
      ArrowLeft: () => document.querySelector('[data-pan=earlier]'),
      ArrowRight: () => document.querySelector('[data-pan=later]'),
      Home: () => document.querySelector('[data-pan=now]'),
      '+': () => zooms[on - 1],
      '-': () => zooms[on + 1],
    }[event.key]?.()
    if (!link) return
    event.preventDefault()
    link.click()
  }
})

"use strict";
// What pages do beyond links and forms. Nothing here reads or writes what a model wrote as HTML, but for pages of this
// server, which escape it.
(() => {
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const served = document.body.dataset.version !== undefined;

  // The table follows its filters, and the address follows the table.
  const filters = find("#filters");
  let asked = 0;
  const fill = async (address) => {
    const mine = ++asked;
    const answer = await fetch(address);
    if (!answer.ok || mine !== asked) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const results = find("#results", page);
    if (!results || mine !== asked) return;
    find("#results").replaceWith(results);
    document.body.dataset.version = page.body.dataset.version;
  };
  if (filters && served) {
    let timer = 0;
    const address = () => {
      const chosen = [...new FormData(filters)].filter(([, value]) => value !== "");
      return location.pathname + (chosen.length ? `?${new URLSearchParams(chosen)}` : "");
    };
    const apply = () => {
      history.replaceState(null, "", address());
      fill(address());
    };
    filters.addEventListener("input", (event) => {
      clearTimeout(timer);
      timer = setTimeout(apply, event.target instanceof HTMLSelectElement ? 0 : 200);
    });
    filters.addEventListener("submit", (event) => {
      event.preventDefault();
      clearTimeout(timer);
      apply();
    });
  }

  // While a run writes, tables and curves follow it.
  const live = find("#live");
  const follow = async () => {
    try {
      const state = await (await fetch("/state")).json();
      live.textContent = state.pending ? `reading ${state.pending} files` : "";
      if (String(state.version) !== document.body.dataset.version) {
        if (find("#results") && !find("#results").contains(document.activeElement)) await fill(location.href);
        else if (!find("#results")) live.textContent = "there are new episodes";
      }
    } catch {
      live.textContent = "the review has been closed in its terminal";
    }
  };
  if (served && live) setInterval(() => { if (!document.hidden) follow(); }, 2000);

  // Tokens by role or by log-probability; the choice holds for every episode of a file.
  all(".shade input").forEach((input) => input.addEventListener("change", () => {
    all(".shade input").forEach((other) => { other.checked = other.value === input.value; });
    all(".tokens").forEach((tokens) => { tokens.className = `tokens ${input.value}`; });
    all(".legend").forEach((legend) => { legend.hidden = !legend.classList.contains(`by-${input.value}`); });
  }));

  // An episode turn by turn. Several may be on one page, in a file that holds them all.
  class Player {
    constructor(root) {
      this.frames = all(".frame", root);
      this.turns = all(".turn", root);
      this.chips = all(".timeline button", root);
      this.slider = find(".slider", root);
      this.position = find(".position", root);
      this.button = find(".play", root);
      this.whole = find(".all", root);
      this.root = root;
      this.last = this.frames.length - 1;
      this.timer = 0;
      find(".back", root).addEventListener("click", () => this.go(this.current - 1));
      find(".next", root).addEventListener("click", () => this.go(this.current + 1));
      this.button.addEventListener("click", () => this.toggle());
      this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
      this.whole.addEventListener("change", () => root.classList.toggle("whole", this.whole.checked));
      this.chips.forEach((chip, index) => chip.addEventListener("click", () => this.go(index)));
    }
    show(index) {
      this.current = Math.max(0, Math.min(this.last, index));
      this.frames.forEach((frame, i) => { frame.hidden = i !== this.current; });
      this.turns.forEach((turn, i) => { turn.hidden = i !== this.current; });
      this.chips.forEach((chip, i) => {
        if (i === this.current) chip.setAttribute("aria-current", "step");
        else chip.removeAttribute("aria-current");
      });
      this.slider.value = String(this.current);
      this.position.textContent = this.current === this.last
        ? `end, after ${this.last} turns` : `before turn ${this.current + 1} of ${this.last}`;
    }
    go(index) {
      this.stop();
      this.show(index);
      if (served) history.replaceState(null, "", this.current === this.last ? "#end" : `#turn=${this.current + 1}`);
    }
    stop() {
      clearInterval(this.timer);
      this.timer = 0;
      this.button.textContent = "▶";
      this.button.setAttribute("aria-label", "play");
    }
    toggle() {
      if (this.timer) { this.stop(); return; }
      if (this.current === this.last) this.show(0);
      this.button.textContent = "❚❚";
      this.button.setAttribute("aria-label", "pause");
      this.timer = setInterval(() => {
        this.show(this.current + 1);
        if (this.current === this.last) this.stop();
      }, 700);
    }
    fromAddress() {
      const found = /^#turn=(\d+)$/.exec(location.hash);
      this.show(found ? Number(found[1]) - 1 : location.hash === "#end" ? this.last : 0);
    }
  }
  const players = new Map(all(".player").filter((root) => find(".slider", root)).map((root) => [root, new Player(root)]));
  players.forEach((player) => player.fromAddress());
  const player = () => [...players].find(([root]) => root.offsetParent !== null)?.[1];
  if (served) addEventListener("hashchange", () => player()?.fromAddress());

  // A file that holds a review shows one part of it at a time: the one that the address names behind its #.
  const views = all(".view");
  const lines = all("#results tbody tr");
  const words = new Map();
  const textOf = (line) => {
    const view = document.getElementById(find(".row", line).hash.slice(1));
    if (!words.has(line)) words.set(line, view.textContent.toLowerCase().replace(/\s+/g, " "));
    return words.get(line);
  };
  const within = (value, wanted) => {
    const [low, high] = wanted.includes("..") ? wanted.split("..") : [wanted, wanted];
    return value !== "" && (low.trim() === "" || Number(value) >= Number(low))
      && (high.trim() === "" || Number(value) <= Number(high));
  };
  const fits = (line, name, wanted) => {
    const value = line.dataset[name] ?? "";
    if (name === "text") return textOf(line).includes(wanted.toLowerCase().trim().replace(/\s+/g, " "));
    if (name === "error") return value.toLowerCase().includes(wanted.toLowerCase());
    if (name === "outcome" && ["differing", "noted"].includes(wanted)) return wanted in line.dataset;
    if (name === "label") return value.split("\n").includes(wanted);
    return ["step", "score", "version", "tokens", "turns"].includes(name) ? within(value, wanted) : value === wanted;
  };
  const choose = () => {
    const chosen = [...new FormData(filters)].filter(([name, value]) => value.trim() !== "" && name !== "sort");
    lines.forEach((line) => { line.hidden = !chosen.every(([name, wanted]) => fits(line, name, wanted)); });
    const count = find("#results .count");
    if (count) count.textContent = String(lines.filter((line) => !line.hidden).length);
    const sort = filters.elements.sort.value;
    const name = sort.replace(/^-/, "");
    const key = (line) => line.dataset[name] ?? "";
    const numbers = lines.every((line) => key(line) === "" || !Number.isNaN(Number(key(line))));
    const compare = (one, other) => numbers ? Number(key(one)) - Number(key(other)) : key(one) < key(other) ? -1 : 1;
    const rank = (one, other) => {
      if (key(one) === key(other)) return lines.indexOf(one) - lines.indexOf(other);
      if (key(one) === "" || key(other) === "") return key(one) === "" ? 1 : -1;
      return (sort.startsWith("-") ? -1 : 1) * compare(one, other);
    };
    const sorted = name ? [...lines].sort(rank) : lines;
    if (lines.length) lines[0].parentNode.append(...sorted);
    all("#results thead a").forEach((link) => {
      const mine = new URLSearchParams(link.hash.split("?")[1]).get("sort").replace(/^-/, "");
      const down = sort === `-${mine}`;
      link.hash = `#episodes?sort=${down ? "" : "-"}${mine}`;
      if (mine === name) link.parentNode.setAttribute("aria-sort", down ? "descending" : "ascending");
      else link.parentNode.removeAttribute("aria-sort");
    });
  };
  const look = () => {
    const [name, query] = location.hash.slice(1).split("?");
    const wanted = views.find((view) => view.id === (name || views[0].id));
    if (!wanted) return;
    views.forEach((view) => { view.hidden = view !== wanted; });
    all(".bar nav a").forEach((link) => {
      if (link.hash === `#${wanted.id}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    if (wanted.contains(filters) && query !== undefined) {
      const given = new URLSearchParams(query);
      const keeps = [...given.keys()].join() === "sort";
      [...filters.elements].filter((field) => field.name).forEach((field) => {
        if (!keeps || field.name === "sort") field.value = given.get(field.name) ?? "";
      });
      find(".more", filters).open = all(".more [name]", filters).some((field) => field.value);
      choose();
    }
    scrollTo(0, 0);
  };
  if (views.length) {
    filters.addEventListener("input", choose);
    filters.addEventListener("submit", (event) => { event.preventDefault(); choose(); });
    find(".quiet", filters).addEventListener("click", () => {
      [...filters.elements].forEach((field) => { field.value = ""; });
      choose();
    });
    addEventListener("hashchange", look);
    look();
  }

  // Keys.
  const rows = () => all("#results .row").filter((row) => row.offsetParent !== null);
  const move = (by) => {
    const there = rows();
    const now = there.indexOf(document.activeElement);
    there[Math.max(0, Math.min(there.length - 1, now < 0 ? (by > 0 ? 0 : there.length - 1) : now + by))]?.focus();
  };
  const click = (selector) => all(selector).find((link) => link.offsetParent !== null)?.click();
  addEventListener("keydown", (event) => {
    const target = event.target;
    const types = target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement
      || (target instanceof HTMLInputElement && !["range", "checkbox", "radio"].includes(target.type));
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (types) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const here = player();
    const keys = {
      j: () => move(1), k: () => move(-1), "[": () => click(".before"), "]": () => click(".after"),
      "/": () => find("#search")?.focus(), u: () => click(".to-table"), g: () => click(".to-group"), t: () => click(".to-tokens"),
      n: () => find("#labels")?.focus(),
    };
    if (here) Object.assign(keys, {
      ArrowLeft: () => here.go(here.current - 1), ArrowRight: () => here.go(here.current + 1),
      Home: () => here.go(0), End: () => here.go(here.last), a: () => here.whole.click(),
    });
    const presses = target instanceof HTMLButtonElement || target.tagName === "SUMMARY" || target instanceof HTMLInputElement;
    if (here && !presses) keys[" "] = () => here.toggle();
    if (target instanceof HTMLInputElement && target.type === "radio" && event.key.startsWith("Arrow")) return;
    if (Object.hasOwn(keys, event.key)) {
      event.preventDefault();
      keys[event.key]();
    }
  });
})();

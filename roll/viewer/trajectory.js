(() => {
  const frames = [...document.querySelectorAll(".frame")];
  const turns = [...document.querySelectorAll(".turn")];
  const chips = [...document.querySelectorAll(".timeline button")];
  const slider = document.getElementById("slider");
  const position = document.getElementById("position");
  const play = document.getElementById("play");
  const last = frames.length - 1;
  let current = 0;
  let timer = null;

  const show = (index, fromAddress) => {
    current = Math.max(0, Math.min(last, index));
    frames.forEach((frame, i) => { frame.hidden = i !== current; });
    turns.forEach((turn, i) => { turn.hidden = i !== current; });
    chips.forEach((chip, i) => i === current ? chip.setAttribute("aria-current", "step") : chip.removeAttribute("aria-current"));
    slider.value = String(current);
    position.textContent = current === last ? `end, after ${last} turns` : `before turn ${current + 1} of ${last}`;
    if (!fromAddress) history.replaceState(null, "", current === last ? "#end" : `#turn=${current + 1}`);
  };
  const mark = (label) => {
    play.classList.toggle("playing", label === "pause");
    play.setAttribute("aria-label", label);
    play.title = label;
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    mark("play");
  };
  const toggle = () => {
    if (timer !== null) { stop(); return; }
    if (current === last) show(0);
    mark("pause");
    timer = setInterval(() => { show(current + 1); if (current === last) stop(); }, 700);
  };
  const go = (index) => { stop(); show(index); };
  const all = document.getElementById("all");
  const toggleAll = () => { all.setAttribute("aria-pressed", String(document.body.classList.toggle("whole"))); };
  const fromHash = () => {
    const found = /^#turn=(\d+)$/.exec(location.hash);
    stop();
    show(found ? Number(found[1]) - 1 : location.hash === "#end" ? last : 0, true);
  };

  document.getElementById("first").addEventListener("click", () => go(0));
  document.getElementById("back").addEventListener("click", () => go(current - 1));
  document.getElementById("next").addEventListener("click", () => go(current + 1));
  document.getElementById("last").addEventListener("click", () => go(last));
  play.addEventListener("click", toggle);
  all.addEventListener("click", toggleAll);
  slider.addEventListener("input", () => go(Number(slider.value)));
  chips.forEach((chip, i) => chip.addEventListener("click", () => go(i)));
  addEventListener("hashchange", fromHash);
  addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const moves = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: last };
    if (event.key === "a") toggleAll();
    else if (event.key in moves) { event.preventDefault(); go(moves[event.key]); }
    else if (event.key === " " && !(event.target instanceof HTMLButtonElement) && event.target.tagName !== "SUMMARY") {
      event.preventDefault();
      toggle();
    }
  });
  document.getElementById("controls").hidden = false;
  fromHash();
})();

// What plain HTML cannot do: dialogs filled on demand, copying, ticking seconds, words for screen readers.
(() => {
  const dialog = document.getElementById("dialog");
  const inside = document.getElementById("dialog-body");
  document.documentElement.classList.add("script");

  document.addEventListener("htmx:after:swap", (event) => {
    if (event.detail.ctx?.target === inside && inside.childElementCount) {
      if (!dialog.open) dialog.showModal();
      inside.querySelector("[autofocus], [aria-invalid=true]")?.focus();
    }
    tell();
    tick();
  });

  // the server did what was asked, and says so in a word
  document.addEventListener("done", (event) => {
    if (dialog?.open) dialog.close();
    toast(event.detail.value);
  });
  dialog?.addEventListener("close", () => inside.replaceChildren());
  document.addEventListener("htmx:error", (event) => {
    if (event.detail.ctx?.sourceElement.closest("[data-dialog], dialog")) toast("The server did not answer. Try again.");
  });

  document.addEventListener("click", (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) return copied(copy);
    const close = event.target.closest("[data-close]");
    if (dialog?.open && (close || event.target === dialog)) {
      event.preventDefault();
      dialog.close();
    }
  });

  async function copied(button) {
    const text = button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // over plain http there is no clipboard: leave the text selected, for the person's own hands
      const code = button.parentElement.querySelector("code");
      getSelection().selectAllChildren(code);
      if (!document.execCommand("copy")) return toast("Selected: press Ctrl+C");
    }
    toast("Copied");
  }

  function toast(text) {
    const line = document.createElement("p");
    line.textContent = text;
    document.getElementById("toasts").append(line);
    setTimeout(() => line.remove(), 6000);
  }

  // which VMs changed state since the last look: said once, politely, for who does not see the page
  let states = seen();
  let looked = find();
  function find() {
    return document.querySelector("[data-find]")?.dataset.find;
  }
  function seen() {
    return new Map([...document.querySelectorAll("[data-vm]")].map((vm) => [vm.id, [vm.dataset.vm, vm.dataset.state]]));
  }
  function tell() {
    const now = seen();
    const said = [];
    for (const [id, [name, state]] of now) if (states.has(id) && states.get(id)[1] !== state) said.push(`${name} is ${state}`);
    // who looks for another name, or sees a part only, misses VMs that are still there
    const partly = find() !== looked || document.querySelector(".left-out");
    for (const [id, [name]] of states) if (!now.has(id) && !partly) said.push(`${name} is gone`);
    states = now;
    looked = find();
    const news = document.getElementById("news");
    if (said.length && news) news.textContent = said.join(". ");
  }

  function tick() {
    for (const one of document.querySelectorAll("[data-since]")) {
      const seconds = Math.max(0, Math.round((Date.now() - Date.parse(one.dataset.since)) / 1000));
      const minutes = Math.floor(seconds / 60);
      const hours = Math.floor(minutes / 60);
      one.textContent = hours ? `${hours} h ${minutes % 60} m` : minutes ? `${minutes} m ${seconds % 60} s` : `${seconds} s`;
    }
  }
  setInterval(tick, 1000);
})();

// From the disk a browser starts no worker, and the search is one: there it runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.document.open();
      inside.document.write(`<!doctype html><html><body><script src="${url}"></script></body></html>`);
      inside.document.close();
      // One after the other: a later language needs the support that an earlier script defines.
      inside.importScripts = async (...urls) => {
        for (const next of urls) {
          await new Promise((loaded, failed) => {
            const script = inside.document.createElement("script");
            Object.assign(script, { src: next, onload: loaded, onerror: failed });
            inside.document.body.append(script);
          });
        }
      };
      inside.postMessage = (data) => {
        this.dispatchEvent(new MessageEvent("message", { data }));
      };
      const ready = new Promise((loaded) => frame.addEventListener("load", loaded, { once: true }));
      this.postMessage = async (data) => {
        await ready;
        inside.dispatchEvent(new MessageEvent("message", { data }));
      };
    }
    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}

"""Debian's Prometheus on loopback, for tests that ask it what it has scraped."""
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

from daemons import free_port


class PrometheusServer:
    @staticmethod
    def skip_without(what):
        """Ends the test with 77 where there is no Prometheus."""
        if shutil.which("prometheus"):
            return
        print(f"SKIPPED: {what} not tried: there is no prometheus (Debian: prometheus)")
        sys.exit(77)

    def __init__(self, folder, config):
        address = f"127.0.0.1:{free_port()}"
        self.url, self.log = f"http://{address}", folder / "prometheus.log"
        (folder / "prometheus.yaml").write_text(config)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/tsdb",
                                             f"--web.listen-address={address}"], stdout=log, stderr=log)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def ask(self, path, **parameters):
        """Returns the data of the answer; None while it does not listen yet, or is not ready."""
        assert self.process.poll() is None, f"Prometheus has ended: {self.log.read_text()[-2000:]}"
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            if refused.code == 503:  # it reads its storage
                return None
            raise AssertionError(f"{url}: {refused.read().decode()}") from refused
        except (urllib.error.URLError, ConnectionError):
            return None

    def series(self, query):
        answer = self.ask("query", query=query)
        return answer and answer["result"]

    def firing(self):
        """Returns name and instance of each alert that fires; the instance is "" where an alert has none."""
        answer = self.ask("alerts") or {"alerts": []}
        return sorted((alert["labels"]["alertname"], alert["labels"].get("instance", "")) for alert in answer["alerts"]
                      if alert["state"] == "firing")

    def check_rules(self):
        """Returns the names of the alerts; fails if a rule has an error."""
        rules = [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
        unhealthy = [rule["name"] for rule in rules if rule["health"] == "err"]
        assert rules and not unhealthy, f"rules with errors: {unhealthy}"
        return [rule["name"] for rule in rules]

# SPDX-License-Identifier: GPL-2.0-or-later
"""What a benchmark hands over: build/bench/NAME.json, and a table of its metrics and their bars."""

import json
import os
import sys
import time

from . import env


class Bar:
    """most: no more than; least: no less than; neither: only reported."""

    def __init__(self, most=None, least=None):
        self.most, self.least = most, least

    def __str__(self):
        return f"<= {self.most:g}" if self.most is not None else f">= {self.least:g}" if self.least is not None else "reported"

    def verdict(self, value):
        if value is None:
            return "NOT MEASURED"
        if self.most is not None and value > self.most or self.least is not None and value < self.least:
            return "missed"
        return "reported" if self.most is None and self.least is None else "ok"


class Figures:
    """bars: {metric: Bar} of everything that must be measured. BENCH_ONLY=METRIC[,METRIC...] measures these only."""

    def __init__(self, name, bars, assumptions=()):
        self.name, self.bars, self.assumptions = name, bars, list(assumptions)
        self.metrics, self.raw, self.failures = {}, {}, {}
        self.start = time.monotonic()
        only = os.environ.get("BENCH_ONLY", "")
        self.only = set(filter(None, only.replace(",", " ").split()))
        unknown = self.only - set(bars)
        if unknown:
            raise SystemExit(f"BENCH_ONLY: {', '.join(sorted(unknown))}: no such metric; there are {', '.join(bars)}")

    def wants(self, *metrics):
        return not self.only or bool(self.only & set(metrics))

    def progress(self, text):
        print(f"[{time.monotonic() - self.start:5.0f} s] {text}", flush=True)

    def measure(self, metrics, function, *arguments):
        """Runs function(self, ...), which gives a value to each of `metrics`; what is raised fails these, not the others."""
        metrics = [metric for metric in metrics if self.wants(metric)]
        if not metrics:
            return
        self.progress(f"measuring {', '.join(metrics)}")
        try:
            function(self, *arguments)
            for metric in metrics:
                if metric not in self.metrics:
                    self.failures[metric] = "no value"
        except Exception as error:      # pylint: disable=broad-except; one fault must not take the other figures
            for metric in metrics:
                if metric not in self.metrics:
                    self.failures[metric] = f"{type(error).__name__}: {error}"
            self.progress(f"failed: {type(error).__name__}: {str(error)[:2000]}")

    def give(self, metric, value):
        assert metric in self.bars, metric
        self.metrics[metric] = round(value, 6)
        self.progress(f"  {metric} = {value:.6g} (bar {self.bars[metric]}: {self.bars[metric].verdict(value)})")

    def finish(self):
        """Writes the report and prints the table; returns the exit code. A bar that is missed is not a failure."""
        wanted = [metric for metric in self.bars if not self.only or metric in self.only]
        for metric in wanted:
            if metric not in self.metrics:
                self.failures.setdefault(metric, "not measured")
        folder = env.ROOT / "build/bench"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}{'-part' if self.only else ''}.json"
        report = {"name": self.name, "metrics": self.metrics, "assumptions": self.assumptions, "failures": self.failures,
                  "seconds": round(time.monotonic() - self.start), "raw": self.raw}
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        width = max(len(metric) for metric in wanted)
        for metric in wanted:
            value = self.metrics.get(metric)
            text = "-" if value is None else f"{value:g}"
            print(f"{metric:{width}}  {text:>12}  {str(self.bars[metric]):>10}  {self.bars[metric].verdict(value)}")
        for metric, why in self.failures.items():
            print(f"{metric} was not measured: {why}", file=sys.stderr)
        return 1 if self.failures else 0

# SPDX-License-Identifier: GPL-2.0-or-later
"""The promises about pages, as checks on the witness's reports.

Even means to within 1/256 of the working set, here called a grain; a bucket of the kernel's tables is a quarter of that.
"""

import time

from . import wait

SETTLE_SECONDS = 30


def grain(report):
    return report["total"] / 256


def nodes_with_pages(report):
    return [int(node) for node, count in report["pages"].items() if count]


def unevenness(report, nodes):
    """Largest difference of a channel's pages from its share, in grains."""
    share = report["total"] / len(nodes)
    return max(abs(report["pages"][str(node)] - share) for node in nodes) / grain(report)


def is_even(report, nodes):
    return sorted(nodes_with_pages(report)) == sorted(nodes) and unevenness(report, nodes) <= 1


def check_even(report, nodes):
    assert sorted(nodes_with_pages(report)) == sorted(nodes), f"pages lie on {report['pages']}, not on nodes {nodes}"
    assert unevenness(report, nodes) <= 1, f"{report['pages']}: {unevenness(report, nodes):.2f} grains (1/256) off"


def check_verified(report):
    assert report["verified_pages"] > 0
    assert report["verify_errors"] == 0, f"{report['verify_errors']} pages did not hold what was written"


def wait_even(guest, nodes, timeout=240):
    """Wait until the pages are even over `nodes`; return the seconds that it took."""
    start = time.monotonic()
    wait.until(lambda: is_even(guest.report(), nodes), timeout, f"pages even over nodes {nodes}", 1)
    return time.monotonic() - start


def settle(guest, nodes, timeout=240):
    """Wait until the pages look balanced over `nodes`, and for 30 s more; return (seconds until balanced, report)."""
    seconds = wait_even(guest, nodes, timeout)
    time.sleep(SETTLE_SECONDS)
    return seconds, guest.report()


def check_grown(report, k, hint_faults):
    """What moved when k channels became k + 1."""
    expected = report["total"] / (k + 1)
    assert abs(report["migrated"] - expected) <= grain(report), \
        f"{report['migrated']} pages moved to another channel, not {expected:.0f} +- {grain(report):.0f}"
    assert hint_faults <= 1.1 * report["migrated"], f"{hint_faults} hint faults for {report['migrated']} migrated pages"


def check_taken_back(before, report, node):
    """What moved when channel `node` went: each of its pages once."""
    had = before["pages"][str(node)]
    assert report["pages"].get(str(node), 0) == 0, f"{report['pages'][str(node)]} pages are left on node {node}"
    assert had <= report["migrated"] <= 1.02 * had, f"{report['migrated']} moves for the {had} pages of node {node}"

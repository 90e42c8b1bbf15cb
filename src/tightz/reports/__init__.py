"""Reports: results as one self-contained HTML page, and as small HTML in notebooks."""

from __future__ import annotations

from tightz.reports.data import ReportData
from tightz.reports.page import report, report_data

__all__ = ["ReportData", "report", "report_data"]

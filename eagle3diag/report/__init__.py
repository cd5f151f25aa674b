"""One result, told four ways: terminal text, a notebook view, one offline HTML file, JSON.

``views`` turns a result into a :class:`~eagle3diag.report.form.Page`; ``text``, ``notebook`` and ``html`` draw that page.
Nothing here measures: numbers are formatted and long series are thinned, no more.
"""

from __future__ import annotations
